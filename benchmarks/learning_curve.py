"""What do more photos bring an inverse? Our decoder, trained alike with 1 024, 2 048, 4 096 and 8 192 photos.

    python benchmarks/learning_curve.py train --weights resnet50.safetensors --photos a.tar b.tar c.tar --test test.tar \
        --device cuda --sizes 1024 8192 --steps 2000 --results curve.jsonl
    python benchmarks/learning_curve.py show curve.jsonl                         # the table, and the law fitted to it

As `unsum train-inverse` trains it: ResNet-50 of version 1, not pooled, clients of 8, 32 and 256 with BatchNorm in train mode,
AdamW with a cosine, views of the photos as bold as there. Every number of photos has the same steps; unseen photos are scored
all along, and the best score counts, so that what learns its photos by heart is stopped in time. The photos of a smaller number
are among those of a larger one.

The law: PSNR = a + b log2(photos), by least squares, and with a floor, error = e + c photos^−d for the mean squared error, where
four points determine it. Both are drawn out to ImageNet's 1.28 million photos, 7.3 doublings beyond what was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from picture_tables import RESNET
from unsum.data import read_photos
from unsum.invert.train import Training, TrainingState, train_inverse
from unsum.models import load_model

IMAGENET = 1_281_167  # photos that the published generator saw
PUBLISHED = 19.24  # dB, RGLA at B = 8


class OneDevice:
    """As much of Lightning's Fabric as one process on one device needs, where that is not installed."""

    world_size, global_rank, is_global_zero = 1, 0, True

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def setup(self, module: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
        return Autocast(module, self), optimizer

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type != "cpu")

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def clip_gradients(self, module: nn.Module, _optimizer: Any, max_norm: float, error_if_nonfinite: bool) -> None:
        nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)

    def broadcast(self, value: float) -> float:
        return value

    def barrier(self) -> None:
        pass


class Autocast(nn.Module):
    def __init__(self, module: nn.Module, fabric: OneDevice) -> None:
        super().__init__()
        self.module, self.fabric = module, fabric

    def forward(self, features: Tensor) -> Tensor:
        with self.fabric.autocast():
            return self.module(features)


def train(options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds
    loaded = load_model(options.model, classes=1, weights=options.weights, fresh_head=True)
    images = read_photos(options.photos, size=loaded.image_size).images
    images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
    unseen = read_photos([options.test], size=loaded.image_size).images[: options.limit]
    print(f"{len(images)} photos, {len(unseen)} unseen", flush=True)
    for size in options.sizes:
        if time.monotonic() < end:
            line = trained(loaded.model, images[:size], unseen, loaded.image_size, options, end)
            with options.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print({name: value for name, value in line.items() if name != "curve"}, flush=True)


def trained(
    model: nn.Module, images: Tensor, unseen: Tensor, side: int, options: argparse.Namespace, end: float
) -> dict[str, Any]:
    """One run, and how its scores rose."""
    start, curve, whole = time.monotonic(), [], math.nan
    training = Training(
        steps=options.steps, size=side, batch=options.batch, clients=tuple(options.clients), save_every=options.every
    )

    def note(step: int, scores: dict[str, float], _pictures: Tensor) -> None:
        curve.append((step, scores["psnr/held-out"], scores["psnr/train"]))
        print(len(images), *curve[-1], flush=True)

    def watch(_state: TrainingState) -> None:
        if time.monotonic() > end:
            raise TimeoutError

    with tempfile.TemporaryDirectory() as folder, suppress(TimeoutError):
        known = {"card": {"photos": len(images)}, "fabric": OneDevice(options.device), "watch": watch, "draw": note}
        inverse = train_inverse(model, images, unseen, Path(folder), training, **known)
        whole = inverse.card["held_out_psnr_batch_8"]
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            inverse.save(options.keep / f"decoder-{len(images)}.safetensors")
    best, seconds = max(score for _, score, _ in curve), time.monotonic() - start
    last = {"photos": len(images), "steps": curve[-1][0], "of": options.steps, "all": whole}
    return last | {"best": best, "seconds": seconds, "curve": curve}


def show(paths: list[Path]) -> None:
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    rows = sorted((row for row in rows if row["steps"] == row["of"]), key=lambda row: row["photos"])
    print(
        "| photos | steps | PSNR of 512 unseen photos, best | at the end | of the last batch trained with | of all unseen |"
    )
    print("|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        _, last, trained = row["curve"][-1]
        print(
            f"| {row['photos']} | {row['steps']} | {row['best']:.2f} | {last:.2f} | {trained:.2f} | {row['all']:.2f} |"
        )
    N, best = np.array([row["photos"] for row in rows], float), np.array([row["best"] for row in rows])
    slope, level = np.polyfit(np.log2(N), best, 1)
    off = float(np.abs(level + slope * np.log2(N) - best).max())
    print(f"\nPSNR = {level:.2f} + {slope:.3f} log2(photos), off by {off:.2f} dB at most")
    if slope <= 0:
        print("More photos did not help at this length: there is no law to draw out.")
        return
    print(f"At {IMAGENET} photos: {level + slope * math.log2(IMAGENET):.2f} dB by this line (published: {PUBLISHED})")
    floor, power = with_floor(N, 10 ** (-best / 10))
    print(f"With a floor (error = e + c photos^-{power:.2f}): {-10 * math.log10(floor(IMAGENET)):.2f} dB there")


def with_floor(N: np.ndarray, errors: np.ndarray) -> tuple[Any, float]:
    """The best e + c N^−d over powers d, e and c by least squares with neither below zero."""
    fits = []
    for power in np.arange(0.02, 2.0, 0.02):
        columns = np.stack([np.ones_like(N), N**-power], 1)
        found, *_ = np.linalg.lstsq(columns, errors, rcond=None)
        if min(found) >= 0:
            fits.append((float(np.square(columns @ found - errors).sum()), power, found))
    _, power, (e, c) = min(fits, key=lambda fit: fit[0])
    return (lambda n: e + c * n**-power), power


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    task = tasks.add_parser("train")
    task.add_argument("--model", default=f"{RESNET}:unpooled")
    task.add_argument("--weights", required=True)
    task.add_argument("--photos", nargs="+", required=True)
    task.add_argument("--test", required=True, help="photos that are only scored")
    task.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    task.add_argument("--steps", type=int, default=2000)
    task.add_argument("--batch", type=int, default=256)
    task.add_argument("--clients", type=int, nargs="+", default=[8, 8, 8, 32, 256])
    task.add_argument("--every", type=float, default=10.0, help="seconds between two scores of unseen photos")
    task.add_argument("--limit", type=int, default=1000, help="unseen photos")
    task.add_argument("--seconds", type=float, default=math.inf)
    task.add_argument("--device", default="cpu")
    task.add_argument("--keep", type=Path, help="a folder for the inverses")
    task.add_argument("--results", type=Path, default=Path("curve.jsonl"))
    tasks.add_parser("show").add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    train(options) if options.task == "train" else show(options.results)


if __name__ == "__main__":
    main()
