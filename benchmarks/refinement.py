"""Do pictures of the learned inverse become better when they are refined to explain the update? Every mode and prior.

    uv run python benchmarks/refinement.py --photos imagenet-samples-224.tar --batches 4 --batch 4

The embedded default model at 128² under a fresh head of 100 classes; the first batch is of the embedded photos, the others are
drawn from `--photos`. The attack sees model and update; pictures are compared with the photos afterwards. Rows of `--out` (JSON
lines) are written as they are measured, so that an interrupted run loses nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import unsum
from unsum.data import embedded_batch, read_photos
from unsum.deadline import time_limit
from unsum.head import collect_features
from unsum.invert import load_inverse
from unsum.invert.refine import refine
from unsum.models import load_model

CLASSES = 100
TV = {"prior": "pixels", "total_variation": 1e-2}
ADAM = {"steps": 0, "gradient_steps": 40}
VARIANTS: dict[str, dict[str, Any]] = {
    "features, spectrum": {"steps": 300},
    "features, pixels": {"prior": "pixels", "steps": 100},
    "features, pixels, TV": {**TV, "steps": 100},
    "features, color": {"prior": "color", "steps": 25},
    "features, decoder-input": {"prior": "decoder-input", "steps": 25},
    "features, decoder-weights": {"prior": "decoder-weights", "steps": 25},
    "g, pixels, TV": {"mode": "g", **TV, **ADAM},
    "g, pixels, TV, cosine": {"mode": "g", "distance": "cosine", **TV, **ADAM},
    "g, spectrum": {"mode": "g", **ADAM},
    "f, pixels, TV": {"mode": "f", **TV, **ADAM},
    "f, spectrum": {"mode": "f", **ADAM},
    "gf, pixels, TV": {"mode": "gf", **TV, **ADAM},
    "gf, spectrum": {"mode": "gf", **ADAM},
    "features, spectrum, 1000 steps": {"steps": 1000},
}
# Gradients lead nowhere while features are wrong, so these modes begin where features were fitted under the same prior.
AFTER = {f"{mode}, {prior}": f"features, {prior}" for mode in ("f", "gf") for prior in ("pixels, TV", "spectrum")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--eval-mode", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("refinement.jsonl"))
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {options.device}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        flush=True,
    )
    rows: list[dict[str, Any]] = []
    with options.out.open("a") as file:
        for number in range(options.batches):
            for row in one_batch(number, options):
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
    print(table(rows))


def one_batch(number: int, options: argparse.Namespace):
    model = load_model("default", classes=CLASSES).model.to(options.device).train(not options.eval_mode)
    images, labels = client_batch(number, options)
    update = unsum.capture(model, images, labels, train=not options.eval_mode)
    leak = unsum.attack(model, update, device=options.device)
    truth = (images, collect_features(model, images))
    start = measured(leak, leak.images, truth)
    common = {"batch": number, "B": options.batch, "mode": "eval" if options.eval_mode else "train"}
    yield {**common, "variant": "start", **start, "from": start["psnr"], "seconds": 0.0}
    done = {"start": leak.images}
    for name in options.variants:
        begin = done.get(AFTER.get(name, "start"), leak.images)
        found = refine(model, update, leak, begin, inverse=load_inverse(model), **VARIANTS[name])
        done[name] = found.images
        history = {key: [float(v) for v in (values[0], values[-1])] for key, values in found.history.items()}
        after = measured(leak, found.images, truth)
        row = {
            **common,
            "variant": name,
            **after,
            "from": start["psnr"],
            "seconds": found.seconds,
            "improved": found.improved,
            **history,
        }
        print(f"batch {number}, {name}: {start['psnr']:.2f} → {after['psnr']:.2f} dB, {found!r}", flush=True)
        yield row


def client_batch(number: int, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    if number == 0:
        private = embedded_batch(options.batch, image_size=128)
        return private.images.to(options.device), private.targets.to(options.device)
    photos = read_photos(options.photos, size=128, limit=200)
    generator = torch.Generator().manual_seed(number)
    chosen = torch.randperm(len(photos), generator=generator)[: options.batch]
    labels = torch.randint(CLASSES, (options.batch,), generator=generator)
    return photos.images[chosen].float().div(255).to(options.device), labels.to(options.device)


def measured(leak: unsum.Leak, images: Tensor | None, truth: tuple[Tensor, Tensor]) -> dict[str, float]:
    scores = unsum.score(replace(leak, images=images), images=truth[0], features=truth[1])
    return {"psnr": scores["psnr"], "ssim": scores["ssim"]}


def table(rows: list[dict[str, Any]]) -> str:
    """Means over the batches, with the smallest and the largest change of PSNR."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["variant"]].append(row)
    lines = [
        "| mode, prior | batches | PSNR | change, smallest … largest | SSIM | features | watched | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, group in groups.items():
        change = [row["psnr"] - row["from"] for row in group]
        moved = f"{mean(change):+.2f}, {min(change):+.2f} … {max(change):+.2f}" if name != "start" else "–"
        misfits = [
            f"{mean(r[key][0] for r in group):.2g} → {mean(r[key][1] for r in group):.2g}" if key in group[0] else "–"
            for key in ("features", "watched")
        ]
        quality = f"{mean(r['psnr'] for r in group):.2f} | {moved} | {mean(r['ssim'] for r in group):.3f}"
        lines.append(
            f"| {name} | {len(group)} | {quality} | {' | '.join(misfits)} | {mean(r['seconds'] for r in group):.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
