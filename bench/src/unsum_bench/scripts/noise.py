"""Labels and features under noise, found by `adaptive`, beside the ideal test between two labels.

    python -m unsum_bench.scripts.noise --json noise.json  # half an hour on one core
    # with further public photos
    python -m unsum_bench.scripts.noise --photos FILE.npz --json more.json
    python -m unsum_bench.scripts.noise --table noise.json  # the table of docs/results/noise.md
    python -m unsum_bench.scripts.noise text  # what noise leaves of a text: see `noisy_text`
    python -m unsum_bench.scripts.noise pictures  # and of pictures: see `noisy_pictures`
    python -m unsum_bench.scripts.noise posterior  # those of small networks: `noisy_posterior`
    python -m unsum_bench.scripts.noise defenses  # every defense and attack: see `defenses`

The noise is Gaussian on every entry of the head's gradient, which holds what `adaptive` reads.
Photos are the embedded ones: the client's are the default batch, and the attacker knows others
(`public`). Features' leakage is 1 − ‖f̂ − f‖²/‖m − f‖² with m the mean feature of the public
photos, not cut off at zero. The ideal test names the better of two labels of one sample, with all
else known, as often as Φ(‖G_A − G_B‖/2σ): no attack on the head can do better (`unsum ceiling`).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import unsum
from unsum.data import embedded_batch, read_photos
from unsum.head import collect_features, find_head
from unsum.models import DEFAULT_MODEL, load_model
from unsum.running.sharing import sharing_models
from unsum.score.reference import public_inputs
from unsum_bench.scripts import defenses, noisy_pictures, noisy_posterior, noisy_text
from unsum_bench.scripts.noisy_pictures import BATCH, CLASSES, SIZE, head_under_noise

LEVELS = (1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.09, 0.2, 0.3, 0.5, 1.0, 3.0, 10.0)
COLUMNS = {
    "granted": "public photos, batch size",
    "unknown": "public photos alone",
    "nothing": "batch size alone",
}


def right(found: Tensor, true: Tensor) -> int:
    """How many labels are right, whichever sample each was found with."""
    return int(
        torch.minimum(
            torch.bincount(found, minlength=CLASSES), torch.bincount(true, minlength=CLASSES)
        ).sum()
    )


def leakage(found: Tensor, features: Tensor, guess: Tensor) -> float:
    """The mean over the true samples; one that has no answer has 0."""
    base = (guess - features).square().sum(1)
    apart = torch.cdist(features, found.double()).square()
    rows, columns = linear_sum_assignment((apart - base[:, None]).numpy())
    return float((1 - apart[rows, columns] / base[rows]).sum()) / len(features)


def two_labels(features: Tensor, sigma: float) -> float:
    """The mean over the samples of Φ(‖G_A − G_B‖/2σ): another label changes the head's gradient by
    (e_A − e_B) (f, 1)ᵀ/B, whichever two they are."""
    apart = (2 * (features.square().sum(1) + 1)).sqrt() / len(features)
    return float(torch.special.ndtr(apart / (2 * sigma)).mean())


def measure(
    draws: int, feature_draws: int, photos: str | None, levels: tuple[float, ...], kinds: list[str]
) -> dict[str, Any]:
    model = load_model(DEFAULT_MODEL, classes=CLASSES).model.train()
    batch = embedded_batch(BATCH, image_size=SIZE)
    model.input_shape = tuple(batch.images.shape[1:])
    public = public_inputs(batch.images)
    assert public is not None
    if photos is not None:
        more = read_photos(photos, size=SIZE, limit=64).images.float() / 255
        public = torch.cat([public, more])[:64]
    name = find_head(model)[0]
    gradients = unsum.capture(model, batch.images, batch.targets).gradients
    features = collect_features(model, batch.images).double()
    guess = collect_features(model, public).double().mean(0)
    granted: dict[str, dict[str, Any]] = {
        "granted": {"batch_size": BATCH, "public": public},
        "unknown": {"public": public},
        "nothing": {"batch_size": BATCH},
    }
    rows = []
    with sharing_models():
        for sigma in levels:
            row: dict[str, Any] = {"sigma": sigma, "two": two_labels(features, sigma)}
            for kind in kinds:
                known = granted[kind]
                labels, got = [], []
                for draw in range(draws):
                    update = head_under_noise(gradients, name, sigma, draw)
                    found = unsum.labels(model, update, "templates", **known)
                    labels.append([right(found, batch.targets), len(found)])
                    if draw < feature_draws:  # what takes time
                        leak = unsum.separate(model, update, "adaptive", **known)
                        got.append(leakage(leak.features, features, guess))
                row[kind] = [
                    *(statistics.mean(column) for column in zip(*labels, strict=True)),
                    statistics.mean(got),
                ]
            rows.append(row)
            print(json.dumps(row), flush=True)
    return {"public": len(public), "draws": draws, "feature_draws": feature_draws, "rows": rows}


def table(found: dict[str, Any]) -> str:
    """One line for every level; the levels in ascending order."""
    kinds = [kind for kind in COLUMNS if kind in found["rows"][0]]
    heads = [f"{COLUMNS[kind]}: labels right of 8 / named | features' leakage" for kind in kinds]
    lines = [
        " | ".join(["| σ", *heads, "two labels told apart |"]),
        "|---" * (2 * len(kinds) + 2) + "|",
    ]
    for row in sorted(found["rows"], key=lambda row: row["sigma"]):
        cells = [f"{row[kind][0]:.1f} / {row[kind][1]:.1f} | {row[kind][2]:.3f}" for kind in kinds]
        two = f"{math.floor(1000 * row['two']) / 1000:.3f} |"
        lines.append(" | ".join([f"| {row['sigma']:g}", *cells, two]))
    return "\n".join(lines)


def main() -> None:
    others = {
        "text": noisy_text.main,
        "pictures": noisy_pictures.main,
        "posterior": noisy_posterior.main,
        "defenses": defenses.main,
    }
    if sys.argv[1:2] and sys.argv[1] in others:
        others[sys.argv[1]](sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--feature-draws", type=int, default=10)
    parser.add_argument("--photos")
    parser.add_argument("--levels", type=float, nargs="+", default=LEVELS)
    parser.add_argument("--kinds", nargs="+", choices=list(COLUMNS), default=list(COLUMNS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    if asked.table is not None:
        print(table(json.loads(asked.table.read_text())))
        return
    found = measure(
        asked.draws, asked.feature_draws, asked.photos, tuple(asked.levels), asked.kinds
    )
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
