"""What `unsum.audit` and `unsum.sweep` take, in groups: the model's origin, the client's samples,
how it trains, what the attacker is granted, and limits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from unsum.attack.options import AUTO, AttackOptions
from unsum.attack.pictures import Inverses
from unsum.errors import UnsumError, nearest
from unsum.invert.refine import Mode
from unsum.local_training import LocalTraining
from unsum.losses import Loss
from unsum.network.loss_function import LossFunction
from unsum.running.declared import check_whole
from unsum.showing.level import DEFAULT_LEVEL

# [samples] of a client, where nobody says otherwise. Chosen by: the size of the papers' batches.
USUAL_BATCH = 8
# [learning rate] of a simulated local training that does not say one. Chosen by: common tutorials.
USUAL_RATE = 0.01

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Loading:
    """Where a model that is given by name comes from, and what shape it takes.

    Args:
        weights: a `.safetensors`, `.pt` or `.npz` state dict for a model given by name.
        classes: of the model; by default as many as the data, the update or the head of trained
            weights have.
        classes_from: the names of a trained head's classes in its order, where the data have others
            or fewer: a file with one name a line, or the folder that the model was trained on.
        fresh_head: put a new head on trained weights; without it their own stays.
        image_size: the side of the photos; by default what the model says or, by trying, takes, the
            data's own size first.
        download: fetch published weights of torchvision's that are not on this disk.

    Examples:
        >>> import unsum
        >>> unsum.Loading(image_size=16).image_size
        16
    """

    weights: str | Path | None = None
    classes: int | None = None
    classes_from: str | Path | None = None
    fresh_head: bool = False
    image_size: int | None = None
    download: bool = False


@dataclass(frozen=True)
class ClientSamples:
    """Which samples the client has; where the data lie in files, `seed` chooses them.

    Args:
        batch: how many (8 by default).
        same_label: how many of them share one label.
        target: of a table, the column that the model predicts.
        columns: of a table, what other columns are where that shall not be guessed:
            `"zip=category,id=skip"`, or a mapping (`number`, `category`, `skip`).

    Examples:
        >>> import unsum
        >>> unsum.ClientSamples(same_label=4).count
        8
    """

    batch: int | None = None
    same_label: int = 0
    target: str | None = None
    columns: str | Mapping[str, str] | None = None

    @property
    def count(self) -> int:
        """How many, `USUAL_BATCH` where nobody says."""
        return USUAL_BATCH if self.batch is None else self.batch


@dataclass(frozen=True)
class ClientTraining:
    """How the client trains. A server sets all that, so the attacker is told.

    Args:
        train: its BatchNorm mode.
        buffers: it sends BatchNorm's running statistics along, as a whole state dict has them.
        loss: what it minimizes, if not cross-entropy: `bce` (rows of several labels, or one output
            for yes and no), `mse`, `focal:GAMMA`, or an object of `unsum.losses`. A function of
            what any network returns and of targets of any kind is one too; then what applies to
            such a network is tried.
        learning_rate, local_steps, epochs, momentum, weight_decay: it takes several steps of SGD
            and sends the change of its weights, as in FedAvg; `local_steps` counts those of all
            epochs together (one an epoch by default), over equal parts of the batch, and the rate
            is 0.01 unless said.

    Examples:
        >>> import unsum
        >>> unsum.ClientTraining().training is None  # one step, whose gradient is sent
        True
        >>> unsum.ClientTraining(local_steps=8, epochs=2).training.steps
        8
    """

    train: bool = True
    buffers: bool = False
    loss: str | Loss | LossFunction | None = None
    learning_rate: float | None = None
    local_steps: int | None = None
    epochs: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def training(self) -> LocalTraining | None:
        """None for one plain step, whose gradient is sent. By default, an epoch is one step."""
        one_step = (None, None, 1, 0, 0)
        rate, steps, epochs = self.learning_rate, self.local_steps, self.epochs
        if (rate, steps, epochs, self.momentum, self.weight_decay) == one_step:
            return None
        check_whole("The number of epochs", epochs)
        rate, steps = USUAL_RATE if rate is None else rate, epochs if steps is None else steps
        return LocalTraining(rate, steps, None, self.weight_decay, self.momentum, epochs)

    @property
    def own_loss(self) -> LossFunction | None:
        """A loss that is any function, which attacks on heads know nothing of."""
        return self.loss if callable(self.loss) and not isinstance(self.loss, Loss) else None

    @property
    def declared_loss(self) -> str | Loss | None:
        """A loss by name or of `unsum.losses`."""
        return cast("str | Loss | None", self.loss) if self.own_loss is None else None


@dataclass(frozen=True)
class Attacker:
    """What the attacker does and is granted, besides the model and the update; the result says so.

    Args:
        attack: `auto` or the name of a separator.
        label_rule: a rule that finds the labels first; without one the attack finds them its own
            way.
        refine: a mode that refines the inverse's pictures, as in `attack`.
        batch_size_known: grant the batch size.
        auxiliary: grant labeled samples of the attacker's own, which some label rules need.
        inverse: an inverse that `unsum train-inverse` made for this backbone, for pictures.
        server: one that changes the model before the client trains, `imprint` or `traps`
            (`imprint:bins=64`); the report shows in red that it may. An honest server by default.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model, data = torch.nn.Linear(64, 20), (torch.randn(3, 64), torch.tensor([4, 4, 1]))
        >>> knows = unsum.Attacker(batch_size_known=True)
        >>> unsum.audit(model, data, attacker=knows).leak.knowledge.batch_size
        3
    """

    attack: str = AUTO
    label_rule: str | None = None
    refine: Mode | None = None
    batch_size_known: bool = False
    auxiliary: tuple[Tensor, Tensor] | None = None
    inverse: Inverses = None
    server: str | None = None

    def options(
        self,
        client: ClientTraining,
        limits: AuditLimits,
        device: torch.device | str | None,
        seed: int,
    ) -> AttackOptions:
        """As attacks take them; refused before anything is computed."""
        wanted = {part.name: getattr(self, part.name) for part in fields(self)}
        made = AttackOptions(
            wanted.pop("attack"),
            **{name: value for name, value in wanted.items() if name != "server"},
            loss=client.declared_loss,
            time_limit=limits.time_limit,
            device=torch.device(device or "cpu"),
            seed=seed,
        )
        made.check()
        return made


@dataclass(frozen=True)
class AuditLimits:
    """How long an audit takes, and what it computes besides.

    Args:
        time_limit: seconds for the attack, as in `attack`, 60 by default and `math.inf` for as long
            as it takes; other defenses that are compared have as long, each.
        compare: play the round again under standard defenses, for the report; None does so where it
            costs little.
        ceiling: bound what any attacker can read, too; False leaves that out, and then nothing is
            called protected.
        prove_below: the level that ceilings are decided against, 0.2 by default;
            `audit.gate(prove_below=…)` holds them against it.

    Examples:
        >>> import unsum
        >>> unsum.AuditLimits().level, unsum.AuditLimits(prove_below=0.05).level
        (0.2, 0.05)
    """

    time_limit: float | None = None
    compare: bool | None = False
    ceiling: bool = True
    prove_below: float | None = None

    @property
    def level(self) -> float:
        """The level that ceilings are decided against."""
        return DEFAULT_LEVEL if self.prove_below is None else self.prove_below


GROUPS = {
    "loading": Loading,
    "samples": ClientSamples,
    "client": ClientTraining,
    "attacker": Attacker,
    "limits": AuditLimits,
}


def grouped(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """The same, which also takes the fields of its groups as keywords of their own, with a warning.

    For one more release: these were its arguments before there were groups.
    """
    own = signature(function).parameters
    homes = {
        part.name: name for name, kind in GROUPS.items() if name in own for part in fields(kind)
    }

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        given: dict[str, Any] = dict(kwargs)
        old = {name: given.pop(name) for name in list(given) if name not in own}
        for name in old:
            if name not in homes:
                hint = nearest(name, [*own, *homes])
                raise TypeError(
                    f"{function.__name__}() has no argument {name!r}; {hint}".rstrip("; ")
                )
        for group in dict.fromkeys(homes[name] for name in old):
            if group in given:
                raise UnsumError(
                    f"Give {_listed(old, homes, group)} within {group}=, not beside it."
                )
            mine = {name: value for name, value in old.items() if homes[name] == group}
            given[group] = replace(GROUPS[group](), **mine)
            written = (
                f"{group}=unsum.{GROUPS[group].__name__}({', '.join(f'{name}=…' for name in mine)})"
            )
            warnings.warn(
                f"{_listed(old, homes, group)} of unsum.{function.__name__} stands in a group now: "
                f"write {written}. The old form works for one more release.",
                DeprecationWarning,
                stacklevel=3,
            )
        return function(*args, **given)

    return called


def _listed(old: Mapping[str, Any], homes: Mapping[str, str], group: str) -> str:
    return ", ".join(f"{name}=" for name in old if homes[name] == group)
