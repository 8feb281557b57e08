"""How an update is attacked and what the attacker is granted: one object from the caller to the
attack."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unsum.attack.pictures import Inverses
from unsum.errors import UnsumError, check_name, unknown_name
from unsum.invert.refine import MODES, Mode
from unsum.knowledge import Knowledge
from unsum.labels import LABEL_RULES, Clues
from unsum.losses import Loss, declared
from unsum.match import MATCHERS
from unsum.running.deadline import DEFAULT_LIMIT
from unsum.running.declared import check_seed
from unsum.separate import SEPARATORS
from unsum.separate.options import read_value, steps_of
from unsum.update import Update

AUTO = "auto"
_OF_EVERY_MATCHER = ("image_size", "auxiliary", "checkpoint", "checkpoint_seconds", "preview")


@dataclass(frozen=True, eq=False)
class AttackOptions:
    """As `unsum.attack` takes them. `method` may carry a matcher's options, as in `ig:steps=2000`;
    `matching` holds more.

    `batch_size_known` grants the batch size before it is known how large it is: `of_batch` fills it
    in.
    """

    method: str = AUTO
    labels: Tensor | None = None
    batch_size: int | None = None
    batch_size_known: bool = False
    label_rule: str | None = None
    auxiliary: tuple[Tensor, Tensor] | None = None
    public: Tensor | None = None
    inverse: Inverses = None
    refine: Mode | None = None
    loss: str | Loss | None = None
    time_limit: float | None = None
    pictures: bool = True  # whether pictures are made of what was read
    matching: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device | str | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """The method without its options."""
        return self.method.partition(":")[0]

    @cached_property
    def written(self) -> dict[str, Any]:
        """The options after the method's name, `name:key=value,key=value`."""
        options: dict[str, Any] = {}
        for part in filter(None, self.method.partition(":")[2].split(",")):
            key, equals, value = part.partition("=")
            if not equals:
                raise UnsumError(
                    f"Options of an attack read NAME:KEY=VALUE,KEY=VALUE; {part!r} has no '='."
                )
            options[key.strip()] = read_value(value.strip())
        return options

    @property
    def shared(self) -> dict[str, Any]:
        """What every method takes, in its own arguments' names."""
        return {"batch_size": self.batch_size, "device": self.device, "seed": self.seed}

    def clues(self, model: nn.Module, update: Update) -> Clues:
        """What a label rule is given."""
        granted = Knowledge(None, self.batch_size, auxiliary=self.auxiliary, public=self.public)
        return Clues.of(model, update, granted, self.device, self.seed)

    @property
    def other_loss(self) -> bool:
        """Whether a loss other than cross-entropy was declared, which most methods do not know."""
        return declared(self.loss) is not None

    @property
    def is_matcher(self) -> bool:
        """Whether the method matches the whole gradient."""
        return self.name in [entry.name for entry in MATCHERS]

    @property
    def steps(self) -> int | None:
        """How many steps the method takes, where it iterates a fixed number of them."""
        if self.is_matcher:
            found = self.written.get("steps", MATCHERS[self.name].options.get("steps"))
            return found if isinstance(found, int) else None
        if self.name not in [entry.name for entry in SEPARATORS]:
            return None
        return steps_of(SEPARATORS[self.name])

    @property
    def default_limit(self) -> float:
        """Seconds where nobody says how many: a method that takes a fixed number of steps ends by
        itself."""
        return DEFAULT_LIMIT if self.steps is None else math.inf

    def follows_steps(self, update: Update) -> bool:
        """Whether the update says that the client took several steps, which are followed under
        cross-entropy."""
        training = update.training
        several = training is not None and training.several_steps and update.kind == "delta"
        return several and not self.other_loss

    def of_batch(self, size: int) -> AttackOptions:
        """The same for a batch of `size` samples, which the attacker hears where that is
        granted."""
        return replace(self, batch_size=size) if self.batch_size_known else self

    def check(self) -> None:
        """Refuse unknown names and contradictory wishes, before anything is computed for them."""
        names = [AUTO, *(entry.name for entry in SEPARATORS), *(entry.name for entry in MATCHERS)]
        check_name("attack", self.name, names)
        check_seed(self.seed)
        if self.label_rule is not None:
            LABEL_RULES[self.label_rule]  # refuses an unknown name with the nearest ones
        if self.refine is not None and self.refine not in MODES:
            raise unknown_name("mode of refinement", self.refine, MODES)
        if self.label_rule is not None and self.labels is not None:
            raise UnsumError(
                "The labels are given, so there is none to find; leave out labels= or label_rule=."
            )
        if self.label_rule is not None and self.other_loss:
            raise UnsumError("Label rules assume cross-entropy; leave out label_rule= or loss=.")
        learns = self.is_matcher and MATCHERS[self.name].needs.auxiliary
        if self.auxiliary is not None and self.label_rule is None and not learns:
            raise UnsumError(
                "Only label rules use auxiliary data, and the attack 'lti'; name one of them, or "
                "leave auxiliary= out."
            )
        if self.is_matcher:
            self._check_matcher()
        elif self.written or self.matching or ":" in self.method:
            extra = self.method.partition(":")[2] or next(iter(self.matching), "")
            raise UnsumError(
                f"The attack {self.name!r} takes no options here; leave {extra!r} out."
            )

    def _check_matcher(self) -> None:
        own = {key: value for key, value in self.written.items() if key not in _OF_EVERY_MATCHER}
        MATCHERS[self.name].check_options(own)
        if self.other_loss:
            raise UnsumError(f"The attack {self.method!r} assumes cross-entropy; leave loss= out.")
        if self.refine is not None:
            raise UnsumError("Gradient matching refines its pictures itself; leave refine= out.")
