"""Options that several commands share, and what they stand for; what always goes together is one
group."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Option

from unsum.commands.shape import panel, place
from unsum.errors import UnsumError, unknown_name

if TYPE_CHECKING:
    from unsum.audit.groups import ClientSamples, Loading
    from unsum.models.received import Received

DataOption = Annotated[
    str | None,
    Option(
        "--data",
        help="Photos: a folder, tar (webdataset too) or npz, torchvision:NAME:DIR or hf:FOLDER. A "
        "table: .csv, .tsv or .parquet. Text for a language model: one a line, or .jsonl.",
        show_default="the embedded ones",
    ),
]
PreviousOption = Annotated[
    Path | None,
    Option(
        help=(
            "The client's update of the round before: momentum (--momentum, or found) is taken off."
        )
    ),
]
DefenseOption = Annotated[
    list[str] | None,
    Option(
        metavar="<str>", help="noise:STD, clip:NORM … from `unsum list defenses`; repeat to chain."
    ),
]
EvalOption = Annotated[bool, Option("--eval-mode", help="BatchNorm uses running statistics.")]
TimeLimitOption = Annotated[
    float | None,
    Option(
        help="Seconds of search until the best answer so far, as Ctrl-C gives; 0 for no limit.",
        show_default="60; none where steps are fixed",
    ),
]
BuffersOption = Annotated[bool, Option("--buffers", help="Send BatchNorm's statistics along.")]
DeviceOption = Annotated[str, Option(help="cpu, cuda, cuda:1, mps …")]
SeedOption = Annotated[int, Option(help="Fixes every random choice.")]
JsonOption = Annotated[bool, Option("--json", help="Print the result as JSON instead of a table.")]


@dataclass(frozen=True)
class NamedModel:
    """A model by name, as `unsum.audit` takes it."""

    model: Annotated[
        str,
        Option(
            help="default (embedded), mlp, mlp:embedded (tables), torchvision:NAME, "
            "torchvision:NAME:WEIGHTS, timm:NAME, hf:FOLDER, FILE.py:FACTORY or FILE.pt2 "
            "(torch.export).",
            show_default=False,
        ),
    ] = "default"
    weights: Annotated[Path | None, Option(help="Its state dict: .safetensors, .pt or .npz.")] = (
        None
    )
    classes: Annotated[
        int | None,
        Option(help="Its classes.", show_default="those of the data, update or head"),
    ] = None
    classes_from: Annotated[
        Path | None,
        Option(
            help=(
                "A trained head's classes in its order: a file, one a line, or the folder it was "
                "trained on."
            )
        ),
    ] = None
    fresh_head: Annotated[
        bool, Option("--fresh-head", help="Put a new head on trained weights, for another task.")
    ] = False
    image_size: Annotated[
        int | None,
        Option(
            help="Side of the photos.", show_default="what the model takes, the photos' own first"
        ),
    ] = None
    download: Annotated[bool, Option("--download", help="Fetch published torchvision weights.")] = (
        False
    )

    @property
    def loading(self) -> Loading:
        """Its origin as `unsum.audit` takes it."""
        import unsum

        return unsum.Loading(
            **{name: value for name, value in vars(self).items() if name != "model"}
        )


@dataclass(frozen=True)
class ClientData:
    """What a simulated client trains on, as `unsum.audit` takes it."""

    data: DataOption = None
    target: Annotated[str | None, Option(help="Of a table: the column to predict.")] = None
    columns: Annotated[
        str | None,
        Option(
            help="Of a table: what columns are, as zip=category,age=number,id=skip.",
            show_default="guessed",
        ),
    ] = None
    same_label: Annotated[int, Option(help="How many of them share one label; 0: any.")] = 0

    def samples(self, batch: int | None) -> ClientSamples:
        """`batch` of them, as `unsum.audit` takes them."""
        import unsum

        return unsum.ClientSamples(
            batch, **{name: value for name, value in vars(self).items() if name != "data"}
        )


@dataclass(frozen=True)
class ChosenAttack:
    """How its update is attacked, as `unsum.audit` takes it."""

    attack: Annotated[str, Option(help="auto, or one from `unsum list attacks`.")] = "auto"
    label_rule: Annotated[
        str | None, Option("--labels", help="A rule for the labels, from `unsum list labels`.")
    ] = None
    inverse: Annotated[
        list[Path] | None,
        Option(
            metavar="<path>",
            help="What `unsum train-inverse` wrote, for pictures; repeat for inner layers.",
        ),
    ] = None
    refine: Annotated[
        str | None, Option(help="Refine pictures: features (raises PSNR), or f, g, gf.")
    ] = None
    loss: Annotated[
        str | None,
        Option(
            help="Its loss: bce, mse or focal:GAMMA; the attacker knows it.",
            show_default="cross-entropy",
        ),
    ] = None


@dataclass(frozen=True)
class Captured:
    """An update that was captured, as `Received` has it; how a client trains may also be that of a
    simulated one."""

    update: Annotated[
        Path | None,
        Option(help="A file (.safetensors, .npz, .pt, Flower's .pb) or a folder of .npy."),
    ] = None
    before: Annotated[
        Path | None, Option(help="Instead: the weights that the server sent out.")
    ] = None
    after: Annotated[
        Path | None, Option(help="Instead: the weights that the client sent back.")
    ] = None
    delta: Annotated[bool, Option("--delta", help="It is a change of weights, not a gradient.")] = (
        False
    )
    learning_rate: Annotated[
        float | None, Option("--lr", help="Learning rate, for weights and local steps.")
    ] = None
    steps: Annotated[
        int | None,
        Option("--local-steps", help="Steps of SGD that it takes, in all epochs together."),
    ] = None
    epochs: Annotated[int, Option(help="How often it goes through its samples.")] = 1
    momentum: Annotated[float, Option(help="The momentum of its SGD.")] = 0.0
    weight_decay: Annotated[float, Option(help="The weight decay of its SGD.")] = 0.0

    def received(self) -> Received | None:
        """The files of the update, if any option speaks of one."""
        if self.update is None and self.before is None and self.after is None:
            if self.delta:
                raise UnsumError(
                    "--delta describes a captured update; give --update, or --before and --after."
                )
            return None
        from unsum.models.received import Received

        return Received(**vars(self))

    def simulated(self) -> dict[str, Any]:
        """How a simulated client trains, as `unsum.audit` names it."""
        names = ("learning_rate", "epochs", "momentum", "weight_decay")
        return {name: getattr(self, name) for name in names} | {"local_steps": self.steps}


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes groups, with an option on the command line for every field of theirs."""
    groups: dict[str, Any] = {}
    flat: list[Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            kinds = get_type_hints(hints[name], include_extras=True)
            flat += [
                _option(part.name, part.default, kinds[part.name]) for part in fields(groups[name])
            ]
        else:
            flat.append(_option(name, parameter.default, hints[name]))

    @wraps(command)
    def called(**values: Any) -> None:
        made = {
            name: kind(**{part.name: values.pop(part.name) for part in fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **values)

    flat.sort(key=lambda parameter: place(parameter.name))
    called.__signature__ = Signature(flat)  # type: ignore[attr-defined] # what Typer makes options of
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return called


def _option(name: str, default: Any, kind: Any) -> Parameter:
    for told in getattr(kind, "__metadata__", ()):
        told.rich_help_panel = panel(name)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def seconds(wanted: float | None) -> float | None:
    """The time limit as an attack takes it: 0 is without end."""
    if wanted is not None and not wanted >= 0:
        raise UnsumError(
            f"--time-limit takes seconds, or 0 for as long as it takes, not {wanted:g}."
        )
    return math.inf if wanted == 0 else wanted


def usable_device(name: str) -> str:
    """`name` if torch can compute there, else a sentence instead of a traceback from the middle of
    the run."""
    import torch

    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        kinds = ["cpu", "cuda", "mps", "xpu"]
        if name.partition(":")[0] not in kinds:
            raise unknown_name("device", name, kinds) from None
        raise UnsumError(f"The device {name!r} cannot be used here; try --device cpu.") from error
    return name
