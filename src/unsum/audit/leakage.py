"""Leakage of a sample as one number from 0 to 1: how much of what sets it apart from the other samples came back.

With x the sample, x̂ what the attack answered for it and m the mean of the batch's other samples (what a typical sample of this
client looks like),

    leakage = 1 − ‖x̂ − x‖² / ‖m − x‖²,   between 0 and 1

so that 1 is the sample itself, and 0 is no better than answering with a typical sample. It is measured twice and the larger one
counts: on the features that reach the last layer, where the attack read them (up to a factor, so that one that finds the
direction alone counts); and on the pixels, where the attack made a picture. Where the mean is worse than no answer at all (zero
features, a mid-gray picture) or there are no other samples, that takes its place.

An update that was captured elsewhere comes without the truth. Then only the attack's own certificate speaks: see `vouched`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.leak import Leak
from unsum.score import SampleScore

DEFAULT_LEVEL = 0.2
_MID_GRAY = 0.5


@dataclass(frozen=True)
class Yardstick:
    """What leakage is measured against: for each sample, how far a typical answer is from it."""

    features: Tensor  # (B,) ‖m − f‖² / ‖f‖²
    pixels: Tensor  # (B,) mean squared error of m


def yardstick(images: Tensor, features: Tensor) -> Yardstick:
    """From the truth: (B, …) images and (B, H) features."""
    flat = features.detach().cpu().double().flatten(1)
    pixels = images.detach().cpu().double().flatten(1)
    energy = flat.square().sum(1).clamp_min(1e-30)
    return Yardstick(
        torch.minimum((_others(flat) - flat).square().sum(1) / energy, torch.ones_like(energy)),
        torch.minimum((_others(pixels) - pixels).square().mean(1), (_MID_GRAY - pixels).square().mean(1)),
    )


def leakage(score: SampleScore, i: int, against: Yardstick, *, pixels_alone: bool = False) -> float:
    """The leakage of sample `i`, from how it was scored."""
    if score.found is None:
        return 0.0
    parts = [0.0]
    if score.feature_cosine > 0 and not pixels_alone:
        # The best multiple of f̂ leaves (1 − cos²) ‖f‖² unexplained.
        parts.append(1 - (1 - score.feature_cosine**2) / max(float(against.features[i]), 1e-30))
    if not math.isnan(score.psnr):
        parts.append(1 - 10 ** (-score.psnr / 10) / max(float(against.pixels[i]), 1e-30))
    return min(max(parts), 1.0)


def leakages(scores: list[SampleScore], images: Tensor, features: Tensor, *, pixels_alone: bool = False) -> list[float]:
    """The leakage of every sample, from how they were scored and the truth.

    `pixels_alone`: the features are those of the pictures found. In many a network any two pictures have similar ones.
    """
    against = yardstick(images, features)
    return [leakage(score, i, against, pixels_alone=pixels_alone) for i, score in enumerate(scores)]


def vouched(leak: Leak, i: int) -> float:
    """The leakage of found sample `i` where the truth is not known; NaN where the attack does not vouch for its answer.

    A certified input is the sample itself. Features with a certified relative error e leave e² of ‖f‖² unexplained, and no
    answer at all takes the place of the other samples, which nobody knows.
    """
    if leak.inputs_exact is not None and bool(leak.inputs_exact[i]):
        return 1.0
    return max(1 - leak.predicted_error**2, 0.0) if leak.exact else math.nan


def _others(rows: Tensor) -> Tensor:
    """(B, n) the mean of all other rows; far away where there are none, so that it is never the nearer answer."""
    if len(rows) == 1:
        return torch.full_like(rows, math.inf)
    return (rows.sum(0, keepdim=True) - rows) / (len(rows) - 1)
