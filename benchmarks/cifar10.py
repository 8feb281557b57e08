"""RGLA, FGLA and the exact solver on CIFAR-10: ten classes, eight photos, labels as they fall.

python benchmarks/cifar10.py --photos cifar10.npz --batches 20

The default architecture at 32², BatchNorm in train mode. RGLA and FGLA are granted the labels, the exact solver nothing. A sample
counts as found when its features are within 1 %.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from pathlib import Path

import torch

import unsum
from unsum.data import read_photos
from unsum.deadline import time_limit
from unsum.head import collect_features
from unsum.models import load_model
from unsum.score import score_samples

B, CLASSES, SIZE, FOUND = 8, 10, 32, 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="an npz with `images` (N, 32, 32, 3) and `labels`")
    parser.add_argument("--batches", type=int, default=20)
    options = parser.parse_args()
    photos = read_photos(options.photos, size=SIZE)
    model = load_model("default", classes=CLASSES, size=SIZE).model.train()
    errors, seconds = defaultdict(list), defaultdict(list)
    for seed in range(options.batches):
        chosen = torch.randperm(len(photos), generator=torch.Generator().manual_seed(seed))[:B]
        images, labels = photos.images[chosen].float() / 255, photos.labels[chosen]
        features, update = collect_features(model, images), unsum.capture(model, images, labels)
        for method in ("exact", "rgla", "fgla"):
            leak = unsum.separate(model, update, method, labels=None if method == "exact" else labels)
            errors[method] += [row.feature_error for row in score_samples(leak, features=features, targets=labels)]
            seconds[method].append(leak.seconds)
    print("| separator | samples found | median error of features | seconds | batches |\n|---|---|---|---|---|")
    for method, found in errors.items():
        share = sum(error < FOUND for error in found) / len(found)
        time = statistics.median(seconds[method])
        print(f"| {method} | {share:.0%} | {statistics.median(found):.1e} | {time:.1f} | {options.batches} |")


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
