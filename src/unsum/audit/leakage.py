"""Leakage of a sample as one number from 0 to 1: how much of what sets it apart from the other samples came back.

With x the sample, x̂ what the attack answered for it and m the mean of the batch's other samples (what a typical sample of this
client looks like),

    leakage = 1 − ‖x̂ − x‖² / ‖m − x‖²,   between 0 and 1

so that 1 is the sample itself, and 0 is no better than answering with a typical sample. It is measured three times and the
largest counts: on the features that reach the last layer, where the attack read them (up to a factor, so that one that finds the
direction alone counts); where the attack made a picture, on its pixels; and on its pixels up to brightness, tint and contrast,
because whoever sees a dark and pale photo knows what is on it. Rows that were read at dense layers are held against
what these layers read (`leakages_of_rows`). Where the mean is worse than no answer at all (zero
features, a mid-gray picture) or there are no other samples, that takes its place.

An update that was captured elsewhere comes without the truth. Then only the attack's own certificate speaks: see `vouched`.

What each attack that was tried got, held against the truth once it is over; the strongest counts, sample by sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unsum.audit.wording import error, percent, sample_count
from unsum.leak import Attempt, Leak
from unsum.level import DEFAULT_LEVEL as DEFAULT_LEVEL
from unsum.score import SampleScore
from unsum.score.labels import LabelsRead
from unsum.score.pictures import picture_cosine

WHOLE = 0.9  # leakage from which a sample is called given away; between the two, a part of it is
_MID_GRAY = 0.5  # the answer of somebody who knows nothing
_SAME = 1e-6  # of a sample's size: what sets it apart is rounding


def leakages(scores: list[SampleScore], images: Tensor, features: Tensor, *, pixels_alone: bool = False) -> list[float]:
    """The leakage of every sample, from how they were scored and the truth: (B, …) images and (B, H) features.

    `pixels_alone`: the features are those of the pictures found. In many a network any two pictures have similar ones.
    """
    flat, pixels = (truth.detach().cpu().double().flatten(1) for truth in (features, images))
    energy = flat.square().sum(1).clamp_min(1e-30)
    # How far a typical answer is from each sample, (B,): ‖m − f‖² / ‖f‖², and the mean squared error of m.
    typical_features = ((_others(flat) - flat).square().sum(1) / energy).clamp(1e-30, 1)
    gray = (_MID_GRAY - pixels).square().mean(1)
    typical_pixels = torch.minimum((_others(pixels) - pixels).square().mean(1), gray).clamp_min(1e-30)
    typical = zip(typical_features.tolist(), typical_pixels.tolist(), _typical_looks(images), strict=True)
    found = []
    for score, (by_features, by_pixels, by_look) in zip(scores, typical, strict=True):
        parts = [0.0]
        if score.found is not None and score.feature_cosine > 0 and not pixels_alone:
            # The best multiple of f̂ leaves (1 − cos²) ‖f‖² unexplained.
            parts.append(1 - (1 - score.feature_cosine**2) / by_features)
        if score.found is not None and not math.isnan(score.psnr):
            parts.append(1 - 10 ** (-score.psnr / 10) / by_pixels)
        if score.found is not None and score.picture_cosine > 0:
            parts.append(1 - (1 - score.picture_cosine**2) / by_look)
        found.append(min(max(parts), 1.0))
    return found


def leakages_of_rows(rows: Tensor, truth: Tensor) -> list[float]:
    """How much of each true input (B, d) of a dense layer is in the nearest of the (n, d) rows that were read there.

    Less than a whole sample is a mixture of several, which nobody can tell from other mixtures, and counts for nothing. Neither
    does a layer that reads the same of all samples.
    """
    x, found = truth.detach().cpu().double(), rows.detach().cpu().double()
    energy = x.square().sum(1)
    typical = torch.minimum((_others(x) - x).square().sum(1), energy)
    distances = torch.stack([(found - row).square().sum(1).min() for row in x])
    values = 1 - distances / typical.clamp_min(1e-30)
    counts = (values >= WHOLE) & (typical > _SAME * energy)
    return torch.where(counts, values, 0.0).tolist()


def vouched(leak: Leak, i: int) -> float:
    """The leakage of found sample `i` where the truth is not known; NaN where the attack does not vouch for its answer.

    A certified input is the sample itself. Features with a certified relative error e leave e² of ‖f‖² unexplained, and no
    answer at all takes the place of the other samples, which nobody knows.
    """
    if leak.inputs_exact is not None and bool(leak.inputs_exact[i]):
        return 1.0
    return max(1 - leak.predicted_error**2, 0.0) if leak.exact else math.nan


def _typical_looks(images: Tensor) -> list[float]:
    """For every picture, the share that the others' mean leaves unexplained where brightness, tint and contrast do not count."""
    if images.ndim != 4 or len(images) == 1:
        return [1.0] * len(images)
    pictures = images.detach().cpu().double()
    others = _others(pictures.flatten(1)).view_as(pictures)
    cosines = [picture_cosine(mean, picture) for mean, picture in zip(others, pictures, strict=True)]
    return [max(1 - cosine**2, 1e-30) if cosine > 0 else 1.0 for cosine in cosines]


def _others(rows: Tensor) -> Tensor:
    """(B, n) the mean of all other rows; far away where there are none, so that it is never the nearer answer."""
    if len(rows) == 1:
        return torch.full_like(rows, math.inf)
    return (rows.sum(0, keepdim=True) - rows) / (len(rows) - 1)


@dataclass(frozen=True)
class LabelsNamed:
    """How many labels were named, and how many of them are right; None where the truth is not known."""

    named: int
    right: int | None = None

    @property
    def sentence(self) -> str:
        named = f"{self.named} label{'s' if self.named != 1 else ''} named"
        return named if self.right is None else f"{named}, {self.right} right"


@dataclass(frozen=True)
class Tried:
    """`leakages` are of every true sample, and empty where the attack refused or the truth is not known.

    `remark` says why samples that it did not find may leak all the same, or why it refused.
    """

    attack: str
    found: int = 0
    leakages: list[float] = field(default_factory=list)
    exact: bool = False
    predicted_error: float = math.nan
    refused: bool = False
    remark: str = ""
    labels: LabelsNamed | None = None  # of an attack that looks for nothing else

    @classmethod
    def of(cls, attempt: Attempt, leakages: list[float], labels: LabelsRead | None = None) -> Tried:
        leak = attempt.leak
        if attempt.labels is not None:
            right = None if labels is None else labels.right
            return cls(attempt.method, remark=attempt.blind, labels=LabelsNamed(len(attempt.labels), right))
        if leak is None:
            return cls(attempt.method, refused=True, remark=attempt.refused)
        found = leak.batch_size
        return cls(attempt.method, found, leakages, leak.exact, leak.predicted_error, remark=attempt.blind)

    @property
    def worst(self) -> float:
        return max(self.leakages, default=math.nan)

    @property
    def shown_worst(self) -> float:
        """The largest leakage, NaN where that is little and the attack does not apply: never 0 %."""
        return math.nan if self.remark and self.worst < DEFAULT_LEVEL else self.worst

    @property
    def empty(self) -> bool:
        """Whether it got nothing, for a reason that `remark` gives."""
        if self.labels is not None:
            return False
        nothing = math.isnan(self.shown_worst) if self.leakages else not self.found
        return bool(self.remark) and (self.refused or nothing)

    @property
    def got(self) -> str:
        """In a few words; nothing that it got is no percentage where the attack does not apply."""
        if self.refused:
            return "refused"
        if self.labels is not None:
            return self.labels.sentence
        if not self.leakages and not self.found:
            return "no whole sample"
        if not self.leakages:
            sure = "certified" if self.exact else "not certified"
            expects = "" if math.isnan(self.predicted_error) else f", predicted error {error(self.predicted_error)}"
            return f"{sample_count(self.found)}, {sure}{expects}"
        over = sum(value >= DEFAULT_LEVEL for value in self.leakages)
        if over:
            return f"{over} of {len(self.leakages)} samples, up to {percent(self.worst)}"
        return "nothing, and does not apply" if self.remark else f"nothing (at most {percent(self.worst)})"


def strongest(tried: list[Tried], samples: int) -> list[tuple[float, str]]:
    """For every sample the largest leakage and the attack that got it; of equals, the first."""
    answered = [one for one in tried if one.leakages]
    return [
        max(((one.leakages[i], one.attack) for one in answered), key=lambda pair: pair[0], default=(0.0, ""))
        for i in range(samples)
    ]
