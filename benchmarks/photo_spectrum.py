"""The spectrum of photos that ceilings are measured with: variances of DCT × color components, fitted.

    uv run python benchmarks/photo_spectrum.py --photos PHOTOS.tar

Prints the table that `src/unsum/ceiling/photos.py` holds, beside how far the fit lies from the measured variances.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import least_squares

from unsum.ceiling.photos import coefficients, frequencies
from unsum.data import open_data
from unsum.data.pictures import decode

SIDE = 64  # pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="a folder, tar or npz of photos")
    parser.add_argument("--count", type=int, default=1500)
    given = parser.parse_args()
    source = open_data(given.photos)
    places = np.random.default_rng(0).permutation(len(source.names))[: given.count].tolist()
    names = [source.names[i] for i in places]
    images = torch.stack([decode(*one, SIDE) for one in zip(names, source.chosen(places), strict=True)]).double() / 255
    mean = images.mean((0, 2, 3), keepdim=True)
    variance = coefficients(images - mean).square().mean(0) / SIDE**2
    k = frequencies(SIDE, SIDE)
    inner = k > 0
    print(f"{len(images)} photos, mean color {[round(float(v), 3) for v in mean.flatten()]}")
    for color in range(3):
        logs, radius = variance[color][inner].log().numpy(), k[inner].numpy()

        def misfit(p: np.ndarray, logs: np.ndarray = logs, radius: np.ndarray = radius) -> np.ndarray:
            return (p[0] - p[2] * np.log(radius**2 + p[1] ** 2) - logs) / radius

        p = least_squares(misfit, [0, 1, 1]).x
        fitted = np.exp(p[0] - p[2] * np.log(radius**2 + p[1] ** 2))
        share = fitted.sum() / variance[color][inner].sum()
        still = float(variance[color][0, 0])
        print(f"    Spectrum({np.exp(p[0]):.4g}, {abs(p[1]):.3g}, {p[2]:.3g}, {still:.3g}),  # sum {share:.3f} of it")


if __name__ == "__main__":
    main()
