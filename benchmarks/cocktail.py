"""Cocktail Party beside the exact solver and the ratio method, and what its parts are worth.

uv run python benchmarks/cocktail.py [--photos FOLDER_OR_TAR]

Features and pictures of the default model out of the last layer, and pictures out of a first linear layer. Without --photos the
embedded ones.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import unsum
from unsum.client.capture import in_mode
from unsum.data import embedded_batch, read_photos, tags
from unsum.deadline import time_limit
from unsum.head import collect_features
from unsum.models import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", help="a folder, tar or npz of photos")
    parser.add_argument("--steps", type=int, default=3000, help="of Adam in the ablation")
    options = parser.parse_args()
    last_layer(options.photos)
    first_layer(options.photos, options.steps)


def photos_of(path: str | None, count: int, size: int) -> Tensor:
    if path is None:
        return embedded_batch(count, image_size=size).images
    return read_photos(path, size=size, limit=count).images.float() / 255


def last_layer(path: str | None) -> None:
    model = load_model("default", classes=len(tags())).model
    print("Last layer: the default model (32 768 features, 100 classes), train mode, batch size granted to all.\n")
    print("| B | labels | attack | labels right | feature error | cosine | PSNR of the inverse's pictures | s |")
    print("|--:|---|---|--:|--:|--:|--:|--:|")
    sizes = (4, 8, 16) if path is None else (8, 16, 32, 64)
    for B in sizes:
        images = photos_of(path, B, 128)
        for kind, targets in (("distinct", torch.arange(B)), ("identical", torch.zeros(B, dtype=torch.long))):
            update = unsum.capture(model, images, targets)
            with in_mode(model, True):
                features = collect_features(model, images)
                for attack in ("exact", "cocktail", "fgla"):
                    leak = unsum.attack(model, update, attack, batch_size=B)
                    found = unsum.score(leak, images=images, targets=targets, features=features)
                    cells = [
                        f"{found['label_correct']:.0%}",
                        f"{found['feature_error']:.1e}",
                        f"{found['feature_cosine']:.4f}",
                    ]
                    print(
                        f"| {B} | {kind} | {attack} | {' | '.join(cells)} | {found['psnr']:.1f} dB | {leak.seconds:.1f} |",
                        flush=True,
                    )


def first_layer(path: str | None, steps: int) -> None:
    size = 48
    print(
        f"\nFirst layer: Linear(3·{size}², 256), ReLU, Linear. Mean |correlation| with the photos; PSNR with the bias's scale.\n"
    )
    print("| B | way | correlation (mean / least) | PSNR | s |")
    print("|--:|---|--:|--:|--:|")
    ways = {
        "fixed point, differences (default)": {},
        "fixed point, pixel values": {"domain": "values"},
        f"Adam, {steps} steps, differences": {"start": "random", "iterations": steps, "learning_rate": 1e-2},
        f"Adam, {steps} steps, values": {"start": "random", "iterations": steps, "learning_rate": 1e-2, "domain": "values"},
        "the same, differences, without negentropy": {
            "start": "random", "iterations": steps, "learning_rate": 1e-2, "contrast": 0.0,
        },
    }  # fmt: skip
    for B in (4, 8, 16) if path is None else (8, 32, 64):
        images = photos_of(path, B, size)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), 256), nn.ReLU(), nn.Linear(256, 100))
        update = unsum.capture(model, images, torch.arange(B))
        for way, options in ways.items():
            if B > 16 and options.get("start") == "random":
                continue
            start = time.perf_counter()
            found = unsum.peel(model, update, method="cocktail", batch_size=B, **options).inputs
            seconds = time.perf_counter() - start
            mean, least, decibel = compare(found, images)
            print(f"| {B} | {way} | {mean:.4f} / {least:.3f} | {decibel:.1f} dB | {seconds:.2f} |", flush=True)


def compare(found: Tensor, images: Tensor) -> tuple[float, float, float]:
    a, b = found.flatten(1).double(), images.flatten(1).double()
    table = torch.corrcoef(torch.cat([a, b]))[: len(a), len(a) :].abs()
    rows, columns = linear_sum_assignment(-table.numpy())
    paired = table[rows, columns]
    error = (a[rows].clamp(0, 1) - b[columns]).square().mean(1)
    return float(paired.mean()), float(paired.min()), float(-10 * error.log10().mean())


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
