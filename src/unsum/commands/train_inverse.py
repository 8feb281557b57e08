"""`unsum train-inverse`: read photos, train, show how it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from typer import Option

from unsum.commands import options
from unsum.commands.stages import PROGRESS, loading, say, stages
from unsum.errors import UnsumError

if TYPE_CHECKING:
    from torch import Tensor

    from unsum.data import Photos
    from unsum.invert.train import TrainingState

_LINE_EVERY = 20.0  # seconds, where there is no terminal to draw a bar on
_HELD_OUT = 0.05  # of the photos, when no others are given


def command(
    data: Annotated[
        list[Path],
        Option(
            help=(
                "Photos to train on: a folder, tar, npz or torchvision:NAME:FOLDER; repeat for "
                "more."
            )
        ),
    ],
    out: Annotated[
        Path, Option(help="Folder for the inverse and its checkpoint; an interrupted run goes on.")
    ],
    model: Annotated[
        str, Option(help="As for `unsum audit`: torchvision:NAME, hf:FOLDER …")
    ] = "default",
    weights: Annotated[
        Path | None, Option(help="The backbone's weights, .safetensors or .pt.")
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        Option(help="Photos that are only scored; by default a twentieth of the others."),
    ] = None,
    image_size: Annotated[
        int | None, Option(help="Side of the photos; by default what the model takes.")
    ] = None,
    hours: Annotated[
        float | None, Option(help="Hours of training; or say how many --steps.")
    ] = None,
    steps: Annotated[int | None, Option(help="Steps of training, instead of --hours.")] = None,
    batch: Annotated[int, Option(help="Photos in a step, on every GPU.")] = 256,
    clients: Annotated[
        str,
        Option(
            help=(
                "Batch sizes of the clients to expect, for BatchNorm in train mode; 0 is eval mode."
            )
        ),
    ] = "8,8,8,32,256",
    loss: Annotated[
        str, Option(help="psnr, mse, l1, rgla or viewing; the last two need LPIPS.")
    ] = "psnr",
    decoder: Annotated[str, Option(help="decoder, or fgla-generator for comparison.")] = "decoder",
    layer: Annotated[
        str | None,
        Option(
            help=(
                "A convolution or dense layer inside the model, to invert what it reads; attacks "
                "go down to it."
            )
        ),
    ] = None,
    blur: Annotated[
        str,
        Option(
            help=(
                "with, without or only: also learn to draw blurred pictures of features that noise "
                "made uncertain; `only` adds that to the inverse of --start."
            )
        ),
    ] = "with",
    learning_rate: Annotated[float, Option("--lr", help="Highest learning rate.")] = 1e-3,
    start: Annotated[Path | None, Option(help="An inverse to begin with, for fine-tuning.")] = None,
    devices: Annotated[
        str, Option(help="How many GPUs or processes; several nodes through torchrun.")
    ] = "1",
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.")] = "auto",
    seed: options.SeedOption = 0,
) -> None:
    """Train the network that turns a backbone's features back into pictures, on photos of your
    own."""
    with loading():
        from unsum.data import read_photos
        from unsum.invert.train import Training, new_fabric, train_inverse
        from unsum.models import load_model
    loaded = load_model(
        model, classes=10, seed=seed, weights=weights, size=image_size, fresh_head=True
    )
    training = Training(
        hours=hours,
        steps=steps,
        size=loaded.image_size,
        batch=batch,
        rate=learning_rate,
        clients=_sizes(clients),
        loss=loss,
        decoder=decoder,
        layer=layer,
        noise=blur,  # type: ignore[arg-type]  # checked there
        seed=seed,
    )
    with stages() as shown:
        shown.say("Reading photos")
        photos = read_photos(data, size=training.size)
        scored = read_photos(held_out, size=training.size) if held_out else None
    photos, scored = (photos, scored) if scored is not None else split(photos, seed)
    fabric = new_fabric(accelerator=device, devices=devices if devices == "auto" else int(devices))
    if fabric.is_global_zero:  # the first step of a large backbone takes a while on a CPU
        say(f"Training on {len(photos.images):,} photos; {len(scored):,} more are only scored")
    with _bars(fabric.is_global_zero) as watch:
        inverse = train_inverse(
            loaded.model,
            photos.images,
            scored.images,
            out,
            training,
            card=photos.card | {"photos": len(photos.images)},
            start=start,
            fabric=fabric,
            watch=watch,
            draw=_board(out, fabric.is_global_zero),
        )
    if fabric.is_global_zero:
        figure = next(
            value for name, value in inverse.card.items() if name.startswith("held_out_psnr")
        )
        print(
            f"{out / 'inverse.safetensors'}: {figure} dB on {len(scored):,} photos that it was not "
            "trained on."
        )


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UnsumError(f"--clients takes batch sizes such as 8,32, not {text!r}.") from error


def split(photos: Photos, seed: int) -> tuple[Photos, Photos]:
    """Every twentieth photo, at random, is kept for the score."""
    import torch

    if len(photos) < 2:
        raise UnsumError("One photo cannot both train and score an inverse; give more with --data.")
    order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(seed))
    count = max(1, round(_HELD_OUT * len(photos)))
    scored, kept = (_chosen(photos, rows) for rows in (order[:count], order[count:]))
    return kept, scored


def _chosen(photos: Photos, rows: Tensor) -> Photos:
    names = [photos.names[i] for i in rows.tolist()]
    return replace(photos, images=photos.images[rows], labels=photos.labels[rows], names=names)


@contextmanager
def _bars(visible: bool) -> Iterator[Callable[[TrainingState], None]]:
    """A bar with the live score on a terminal, a line now and then in a log."""
    columns = (
        TextColumn("Training"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    drawn, last = visible and PROGRESS.is_terminal, -_LINE_EVERY
    with Bars(*columns, console=PROGRESS, transient=True, disable=not drawn) as bars:
        task = bars.add_task("", total=1.0)

        def watch(progress: TrainingState) -> None:
            nonlocal last
            sentence = (
                f"step {progress.step:,}, {progress.photos_per_second:,.0f} photos/s, "
                f"{progress.train_psnr:.2f} dB in training, {progress.held_out_psnr:.2f} dB held "
                "out"
            )
            bars.update(task, completed=min(1.0, progress.done), description=sentence)
            if (
                visible
                and not drawn
                and (time.monotonic() - last > _LINE_EVERY or progress.done >= 1)
            ):
                last = time.monotonic()
                say(f"{progress.done:.0%}, {sentence}")

        yield watch


def _board(out: Path, visible: bool) -> Callable[[int, dict[str, float], Tensor], None] | None:
    """Curves and pictures for TensorBoard, where it is installed."""
    if not visible:
        return None
    import torch

    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        say("no curves: TensorBoard is not installed (pip install 'unsum[train]').")
        return None
    writer: Any = SummaryWriter(str(out / "tensorboard"))

    def draw(step: int, scalars: dict[str, float], pictures: Tensor) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.add_image(
            "original above, inverse below",
            torch.cat([torch.cat(list(row), 2) for row in pictures], 1),
            step,
        )
        writer.flush()

    return draw
