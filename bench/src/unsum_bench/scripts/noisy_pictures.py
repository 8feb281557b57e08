"""Pictures under noise: drawn with the uncertainty of the features, and as if they were exact.

    python -m unsum_bench.scripts.noise pictures --json pictures.json  # ten draws
    python -m unsum_bench.scripts.noise pictures --table pictures.json  # as docs/results/noise.md

The default model with its embedded inverse, or --inverse's, and the default batch, in train mode;
`adaptive` is granted the batch size and photos that are not the client's. The noise is Gaussian on
every entry of the head's gradient. Leakage is that of reports, 1 − ‖x̂ − x‖²/‖m − x‖² with m the
nearest guess without the update, on pixels alone and not cut off at zero. Pictures are paired by
their features.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import unsum
from unsum.data import embedded_batch
from unsum.head import collect_features, find_head
from unsum.invert import Inverse, load_inverse
from unsum.leak import Leak
from unsum.models import DEFAULT_MODEL, load_model
from unsum.running.sharing import sharing_models
from unsum.score.pictures import psnr, ssim
from unsum.score.reference import diverse_samples, flat, guess, public_inputs, public_picture
from unsum.score.samples import assign

LEVELS = (0.0, 1e-3, 1e-2, 0.03, 0.09, 0.3)
CLASSES, SIZE, BATCH = 100, 128, 8
FIGURES = ("PSNR", "SSIM", "leakage")


def head_under_noise(
    gradients: dict[str, Tensor], name: str, sigma: float, draw: int
) -> unsum.Update:
    """The update with noise on the layer's entries."""
    torch.manual_seed(draw)
    noisy = {
        key: value + sigma * torch.randn_like(value) if key.startswith(f"{name}.") else value
        for key, value in gradients.items()
    }
    return unsum.Update(noisy)


class Judge:
    """Scores pictures against the client's own."""

    def __init__(self, images: Tensor) -> None:
        self.images = images
        color = public_picture(images)
        known = guess(images, color, diverse_samples(images, color))
        self.guessed = (known - flat(images)).square().sum(1)

    def figures(self, found: Tensor) -> list[float]:
        """PSNR, SSIM and leakage of (B, 3, s, s) pictures in the client's order, on average."""
        off = (flat(found) - flat(self.images)).square().sum(1)
        pairs = list(zip(found, self.images, strict=True))
        return [
            statistics.mean(psnr(one, true) for one, true in pairs),
            statistics.mean(ssim(one, true) for one, true in pairs),
            float((1 - off / self.guessed).mean()),
        ]


def in_order(leak: Leak, features: Tensor, pictures: Tensor) -> Tensor:
    """The client's samples' pictures; gray where the attack found too few samples."""
    gray = torch.full_like(pictures[0], 0.5)
    partners = assign(leak.features, features)
    return torch.stack([gray if place is None else pictures[place] for place in partners])


def measure(draws: int, levels: Sequence[float], inverse: Path | None) -> dict[str, Any]:
    model = load_model(DEFAULT_MODEL, classes=CLASSES).model.train()
    batch = embedded_batch(BATCH, image_size=SIZE)
    model.input_shape = tuple(batch.images.shape[1:])
    public = public_inputs(batch.images)
    assert public is not None
    drawer: Inverse = load_inverse(model, inverse)
    assert drawer.blurred is not None
    name = find_head(model)[0]
    gradients = unsum.capture(model, batch.images, batch.targets).gradients
    features, judge = collect_features(model, batch.images), Judge(batch.images)
    usual = F.interpolate(drawer.blurred.mean[None], (SIZE, SIZE), mode="bilinear")
    answers = {
        "gray": torch.full_like(usual, 0.5),
        "mean of the public photos granted": public.mean(0, keepdim=True),
        "mean of the inverse's training photos": usual,
    }
    without = {
        what: judge.figures(picture.expand_as(batch.images)) for what, picture in answers.items()
    }
    rows = []
    with sharing_models():
        for sigma in levels:
            seen: dict[str, list[list[float]]] = {"exact": [], "uncertain": []}
            for draw in range(draws if sigma else 1):
                update = head_under_noise(gradients, name, sigma, draw)
                leak = unsum.separate(model, update, "adaptive", batch_size=BATCH, public=public)
                for kind, one in (("exact", replace(leak, errors=None)), ("uncertain", leak)):
                    drawn = unsum.invert(model, one, inverse=drawer)
                    seen[kind].append(judge.figures(in_order(leak, features, drawn)))
            means = {
                kind: [statistics.mean(column) for column in zip(*figures, strict=True)]
                for kind, figures in seen.items()
            }
            rows.append({"sigma": sigma, **means})
            print(json.dumps(rows[-1]), flush=True)
    return {"draws": draws, "without": without, "rows": rows}


def table(found: dict[str, Any]) -> str:
    """One line for every level, then the answers that need no update."""
    heads = [f"{what}, {how}" for how in ("as exact", "as uncertain") for what in FIGURES]
    lines = [f"| σ | {' | '.join(heads)} |", "|---" + "|--:" * len(heads) + "|"]
    for row in sorted(found["rows"], key=lambda row: row["sigma"]):
        cells = [*_cells(row["exact"]), *_cells(row["uncertain"])]
        lines.append(f"| {row['sigma']:g} | {' | '.join(cells)} |")
    for what, figures in found["without"].items():
        lines.append(f"| {what} | {' | '.join([*[''] * len(FIGURES), *_cells(figures)])} |")
    return "\n".join(lines)


def _cells(figures: Sequence[float]) -> list[str]:
    quality, similarity, leakage = figures
    return [f"{quality:.2f}", f"{similarity:.3f}", f"{leakage:.3f}"]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--levels", type=float, nargs="+", default=LEVELS)
    parser.add_argument("--inverse", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args(arguments)
    if asked.table is not None:
        print(table(json.loads(asked.table.read_text())))
        return
    found = measure(asked.draws, asked.levels, asked.inverse)
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1))
    print(table(found))
