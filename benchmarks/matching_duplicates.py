"""RGLA's table 8 with gradient matching beside it: k of 8 labels the same, small pictures.

python examples/generator.py public-photos.tar --out generator.safetensors
python benchmarks/matching_duplicates.py --photos cifar100.npz --inverse inverse.safetensors --generator generator.safetensors \
    --device cuda --results duplicates.jsonl
python benchmarks/matching_duplicates.py --show duplicates.jsonl

The default architecture at 32² with BatchNorm in train mode. `exact`, `rgla` and `fgla` go through the inverse that
`unsum train-inverse --model default --image-size 32` made; `ig` and `dlg` need none; `ggl` and `gias` search the generator's
latents. The labels are granted to all but `exact`. Photos that trained the inverse must not be attacked: those that
it held out are taken. Every finished run is a line of the results file, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unsum
from unsum.bench.published import FGLA_BY_DUPLICATES, MATCHING_BY_DUPLICATES, RGLA_BY_DUPLICATES
from unsum.commands.train_inverse import split
from unsum.data import read_photos
from unsum.deadline import time_limit
from unsum.models import load_model

GENERATOR = Path(__file__).parents[1] / "examples" / "generator.py"
INVERTED, GENERATED = ("exact", "rgla", "fgla"), ("ggl", "gias")
METHODS = (*INVERTED, "ig", "dlg", *GENERATED)
PUBLISHED = {"exact": ""} | {
    name: f"{row[0]} → {row[8]}"
    for name, row in {"rgla": RGLA_BY_DUPLICATES, "fgla": FGLA_BY_DUPLICATES, **MATCHING_BY_DUPLICATES}.items()
}
B, CLASSES, SIZE = 8, 100, 32


def draw(photos: Tensor, labels: Tensor, same: int, seed: int) -> tuple[Tensor, Tensor]:
    """Eight photos of distinct labels, of which `same` then share one."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    first: dict[int, int] = {}
    for place in order.tolist():
        first.setdefault(int(labels[place]), place)
    chosen = torch.tensor(list(first.values())[:B])
    given = labels[chosen].clone()
    given[:same] = given[0]
    return photos[chosen].float() / 255, given


def run(options: argparse.Namespace) -> None:
    done = {(r["same"], r["seed"], r["method"]) for r in _read(options.results)} if options.results.exists() else set()
    model = load_model("default", classes=CLASSES, size=SIZE).model.train().to(options.device)
    held_out = split(read_photos([options.photos], size=SIZE), seed=0)[
        1
    ]  # as `unsum train-inverse` with its own seed did
    for seed in range(options.batches):
        for same in options.same:
            images, targets = (t.to(options.device) for t in draw(held_out.images, held_out.labels, same, seed))
            update = unsum.capture(model, images, targets)
            for method in options.methods:
                if (same, seed, method) in done:
                    continue
                granted = {} if method == "exact" else {"labels": targets}
                start = time.perf_counter()
                leak = unsum.attack(model, update, method, **granted, **_given(method, options))
                seconds = time.perf_counter() - start
                scores = unsum.score(leak, images=images, targets=targets)
                line = {
                    "same": same,
                    "seed": seed,
                    "method": method,
                    "seconds": seconds,
                    "psnr": scores["psnr"],
                    "ssim": scores["ssim"],
                }
                with options.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(
                    f"{same}/{B}, batch {seed}, {method}: {scores['psnr']:.2f} dB, {seconds:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )


def _given(method: str, options: argparse.Namespace) -> dict[str, Any]:
    name = method.partition(":")[0]
    if name in GENERATED:
        return {"options": {"generator": f"{GENERATOR}:build", "weights": str(options.generator), "image_size": SIZE}}
    return {"inverse": options.inverse} if name in INVERTED else {"options": {"image_size": SIZE}}


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def show(path: Path) -> None:
    cells: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for record in _read(path):
        cells[record["method"], record["same"]].append(record)
    amounts = sorted({same for _, same in cells})
    print(
        f"| attack | published, 0/8 → 8/8 | {' | '.join(f'{same}/8: PSNR / SSIM' for same in amounts)} | batches | seconds |"
    )
    print("|---|---|" + "---|" * (len(amounts) + 2))
    for method in sorted({method for method, _ in cells}, key=lambda method: METHODS.index(method.partition(":")[0])):
        runs = [r for same in amounts for r in cells.get((method, same), [])]
        if not runs:
            continue
        figures = [_mean(cells[method, same]) for same in amounts]
        counts = "/".join(str(len(cells[method, same])) for same in amounts)
        seconds = statistics.median(r["seconds"] for r in runs)
        print(
            f"| `{method}` | {PUBLISHED.get(method.partition(':')[0], '')} | {' | '.join(figures)} | {counts} | {seconds:.1f} |"
        )


def _mean(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return ""
    return " / ".join(f"{statistics.mean(r[column] for r in runs):.2f}" for column in ("psnr", "ssim"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="what the inverse was trained with: its held-out share is attacked")
    parser.add_argument("--inverse", type=Path)
    parser.add_argument("--generator", type=Path, help="weights that examples/generator.py made")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--same", type=int, nargs="+", default=[0, 4, 8])
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="names, with options: ig:steps=1000")
    parser.add_argument("--results", type=Path, default=Path("matching-duplicates.jsonl"))
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    show(options.show) if options.show else run(options)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
