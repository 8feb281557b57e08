"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from unsum.errors import UnsumError, unknown_name
from unsum.models.received import Received

ModelOption = Annotated[
    str,
    typer.Option(
        help="default, mlp, torchvision:NAME[:WEIGHTS], timm:NAME, hf:FOLDER, FILE.py:FACTORY, or FILE.pt2 of torch.export."
    ),
]
WeightsOption = Annotated[Path | None, typer.Option(help="A .safetensors, .pt or .npz state dict for the model.")]
ClassesOption = Annotated[
    int | None, typer.Option(help="Classes of the model; by default as many as the data or the update have.")
]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Fetch published torchvision weights that are not on this disk.")
]
DataOption = Annotated[
    str | None,
    typer.Option(
        help="The client's photos: a folder, tar (webdataset too) or npz, torchvision:NAME:FOLDER, or hf:FOLDER. "
        "[default: the embedded ones]",
        show_default=False,
    ),
]
UpdateOption = Annotated[
    Path | None,
    typer.Option(help="A captured update: .safetensors, .npz, .pt, a Flower record (.pb), or a folder of .npy files."),
]
BeforeOption = Annotated[Path | None, typer.Option(help="Instead of an update: the weights that the server sent out.")]
AfterOption = Annotated[Path | None, typer.Option(help="Instead of an update: the weights that the client sent back.")]
DeltaOption = Annotated[bool, typer.Option("--delta", help="The update is a change of weights, not a gradient.")]
RateOption = Annotated[
    float | None, typer.Option("--lr", help="The client's learning rate, if known, for weights or their change.")
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", help="How many local steps lie between --before and --after, if known.")
]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps …")]
SeedOption = Annotated[int, typer.Option(help="Fixes every random choice.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of a table.")]


def received(
    update: Path | None, before: Path | None, after: Path | None, delta: bool, rate: float | None, steps: int | None
) -> Received | None:
    """The files of a captured update, if any option speaks of one."""
    if update is None and before is None and after is None:
        if delta or rate is not None or steps is not None:
            raise UnsumError(
                "--delta, --lr and --steps describe a captured update; give --update, or --before and --after."
            )
        return None
    return Received(update, before, after, delta, rate, steps)


def usable_device(name: str) -> str:
    """`name` if torch can compute there, else a sentence instead of a traceback from the middle of the run."""
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        kinds = ["cpu", "cuda", "mps", "xpu"]
        if name.partition(":")[0] not in kinds:
            raise unknown_name("device", name, kinds) from None
        raise UnsumError(f"The device {name!r} cannot be used here; try --device cpu.") from error
    return name
