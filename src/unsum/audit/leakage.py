"""Leakage of a sample, from 0 to 1: how much better the update lets an attacker answer.

With x the sample, x̂ what the attack answered for it and m what the attacker would answer without
the update (`unsum.score.reference`),

    leakage = 1 − ‖x̂ − x‖² / ‖m − x‖²,   between 0 and 1

so that 1 is the sample itself, and 0 is no better than a guess. It is measured of two things, which
`Shares` keeps apart; the larger counts:

- the features that reach the last layer, where the attack read them: up to a factor, so that one
  that finds the direction alone counts, and the guess is taken up to a factor as well;
- the sample: on the inputs or rows that were read; where the attack made a picture, on its pixels,
  and on its pixels up to brightness, tint and contrast, because whoever sees a dark and pale photo
  knows what is on it.

An answer for a sample is one for every sample that is alike. Whatever the guess, what is certified
counts with its own error, and a picture of which at least half came back up to its tone counts with
that share.

An update that was captured elsewhere comes without the truth. Then only the attack's own
certificate speaks: see `vouched`.

What each attack that was tried got, held against the truth once it is over; the strongest counts,
sample by sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unsum.attack.any_network import PROVES_NOTHING
from unsum.audit.wording import error, percent, sample_count
from unsum.leak import Attempt, Leak
from unsum.notes import Code, code_of
from unsum.score import SampleScore
from unsum.score.labels import LabelsRead
from unsum.score.pictures import picture_cosine, psnr
from unsum.score.reference import (
    DIVERSE,
    alike,
    distance,
    diverse_samples,
    flat,
    guess,
    left_by_directions,
    others,
    public_picture,
)
from unsum.showing.level import DEFAULT_LEVEL as DEFAULT_LEVEL

WHOLE = 0.9  # leakage from which a sample is called given away; between the two, a part of it is
# share of a picture up to its tone, from which gradient matching's were recognized at 12 dB
ALIKE = 0.5
# of a sample's size: a layer that tells samples no further apart reads the same of all
_SAME = 1e-6
# [of what a guess leaves] that a recognizable picture leaves at most, beside the mean of photos
# that an inverse draws of nothing. Chosen by: arbitrary margin for its interpolation.
_NEARER = 0.8
_TINY = 1e-30  # [squared distance] keeps a guess that is right from dividing by zero


@dataclass(frozen=True)
class Shares:
    """What came back of one sample, from 0 to 1: of its features and of the sample itself; NaN
    where nothing of the kind was read or nobody knows.

    >>> Shares(features=1.0, sample=0.04).most, Shares(features=1.0, sample=0.04).read
    (1.0, 'features')
    """

    features: float = math.nan
    sample: float = math.nan

    @property
    def most(self) -> float:
        known = [value for value in (self.features, self.sample) if not math.isnan(value)]
        return max(known, default=math.nan)

    @property
    def read(self) -> str:
        """What `most` is a share of: "features" or "sample"; empty where nothing is known."""
        if math.isnan(self.most):
            return ""
        return "sample" if self.sample == self.most else "features"

    def or_better(self, other: Shares) -> Shares:
        """The larger of both, each for itself; NaN is less than anything."""
        return Shares(_larger(self.features, other.features), _larger(self.sample, other.sample))

    def where_decided(self, decided: bool) -> Shares:
        """Without what is small and proves nothing, unless that is decided."""
        return self if decided or self.most >= DEFAULT_LEVEL else Shares()


@dataclass(frozen=True)
class Truth:
    """The client's samples and what the attacker could know of their kind, prepared once for all
    attacks.

    `features` (B, H) are what reached the last layer, `public` (k, H) guesses at them.
    """

    images: Tensor
    features: Tensor
    public: Tensor | None = None
    diverse: Tensor = field(init=False)  # (B,) see `diverse_samples`
    alike: Tensor = field(init=False)  # (B, B)

    def __post_init__(self) -> None:
        color = public_picture(self.images)
        object.__setattr__(self, "diverse", diverse_samples(self.images, color))
        object.__setattr__(self, "alike", alike(self.images, color))

    @property
    def are_samples(self) -> bool:
        """Whether the last layer reads the samples themselves."""
        return is_same(self.features, self.images)

    def guessed(self, samples: Tensor, public: Tensor | None) -> Tensor:
        """(B,) ‖m − x‖² of the best guess at something that was read of every sample."""
        return distance(guess(samples, public, self.diverse), samples).clamp_min(_TINY)

    def looks(self) -> list[float]:
        """For every picture, the share that the guess leaves unexplained where brightness, tint and
        contrast do not count."""
        if self.images.ndim != 4 or not bool(self.diverse.any()):
            return [1.0] * len(self.images)
        pictures = self.images.detach().cpu().double()
        means = others(pictures.flatten(1)).view_as(pictures)
        cosines = [
            picture_cosine(mean, picture) for mean, picture in zip(means, pictures, strict=True)
        ]
        left = [1 - cosine**2 if cosine > 0 else 1.0 for cosine in cosines]
        known = zip(left, self.diverse.tolist(), strict=True)
        return [share if counts and share >= DIVERSE else 1.0 for share, counts in known]

    def answers(self, scores: Sequence[SampleScore]) -> list[list[int]]:
        """For every sample the answers that count for it: its partner, and those of samples that
        are alike."""
        places = [[j for j, near in enumerate(row) if near] for row in self.alike.tolist()]
        return [
            sorted({found for j in row if (found := scores[j].found) is not None}) for row in places
        ]


def leakages(leak: Leak, scores: Sequence[SampleScore], truth: Truth) -> list[Shares]:
    """What one attack got of every sample, from its answer and how that was paired with the
    truth."""
    own = truth.answers(scores)
    nothing = (
        Shares(sample=0.0) if leak.pictures_first or truth.are_samples else Shares(features=0.0)
    )
    got, parts = (
        [nothing] * len(scores),
        [_by_inputs(leak, truth, own), _by_pictures(leak, truth, own)],
    )
    if (
        not leak.pictures_first
    ):  # features of pictures add nothing: in many a network any two pictures have similar ones
        parts.append(_by_features(leak, truth, own))
    for values in parts:
        got = [share.or_better(value) for share, value in zip(got, values, strict=True)]
    return got


def leakages_of_answers(
    leak: Leak, answers: Tensor, read: Tensor, scores: Sequence[SampleScore], truth: Truth
) -> list[float]:
    """How much of what a layer read of each sample is in the answers (n, d) for it, which stand in
    the leak's order."""
    return _near(leak, answers, flat(read), truth.guessed(read, None), truth.answers(scores))


def leakages_of_rows(rows: Tensor, read: Tensor, truth: Truth) -> list[float]:
    """How much of each true input (B, d) of a dense layer is in the nearest of the (n, d) rows that
    were read there.

    Less than a whole sample is a mixture of several, which nobody can tell from other mixtures, and
    counts for nothing. Neither does a layer that reads the same of all samples.
    """
    x, found = flat(read), flat(rows)
    guessed = truth.guessed(x, None)
    distances = torch.stack([(found - row).square().sum(1).min() for row in x])
    values = 1 - distances / guessed
    counts = (values >= WHOLE) & (guessed > _SAME * x.square().sum(1))
    return torch.where(counts, values, 0.0).tolist()


def vouched(leak: Leak, i: int) -> Shares:
    """What the attack vouches for of found sample `i` where the truth is not known; NaN where it
    does not.

    A certified input is the sample itself. Features with a certified relative error e leave e² of
    ‖f‖² unexplained, and no answer at all takes the place of the guess.
    """
    sample = 1.0 if leak.inputs_exact is not None and bool(leak.inputs_exact[i]) else math.nan
    return Shares(max(1 - leak.predicted_error**2, 0.0) if leak.exact else math.nan, sample)


def vouched_shares(leak: Leak) -> list[Shares]:
    """Of every sample that was found."""
    return [vouched(leak, i) for i in range(leak.batch_size)]


def is_same(read: Tensor, images: Tensor) -> bool:
    """Whether what a layer read is the samples themselves, in another shape."""
    x, whole = flat(read), flat(images)
    return x.shape == whole.shape and torch.equal(x, whole)


def _by_features(leak: Leak, truth: Truth, own: list[list[int]]) -> list[Shares]:
    found, x = leak.features.detach().cpu().double(), flat(truth.features)
    if not len(found) or found.shape[1:] != x.shape[1:]:
        return [Shares()] * len(x)
    energy = x.square().sum(1).clamp_min(_TINY)
    left = left_by_directions(truth.features, truth.public, truth.diverse).clamp_min(_TINY)
    shares = []
    for i, places in enumerate(own):
        cosines = torch.cosine_similarity(found[places], x[i : i + 1], dim=1)
        # The best multiple of f̂ leaves (1 − cos²) ‖f‖² unexplained.
        parts = torch.where(cosines > 0, 1 - (1 - cosines**2) / left[i], 0.0).tolist()
        certified = (
            (1 - (found[places] - x[i]).square().sum(1) / energy[i]).tolist() if leak.exact else []
        )
        shares.append(min(max([0.0, *parts, *certified]), 1.0))
    return [
        Shares(sample=value) if truth.are_samples else Shares(features=value) for value in shares
    ]


def _by_inputs(leak: Leak, truth: Truth, own: list[list[int]]) -> list[Shares]:
    """On the inputs themselves, where they were read."""
    x = flat(truth.images)
    if (
        leak.inputs is None
        or not len(leak.inputs)
        or leak.inputs.shape[1:] != truth.images.shape[1:]
    ):
        return [Shares()] * len(x)
    guessed = truth.guessed(truth.images, public_picture(truth.images))
    return [Shares(sample=value) for value in _near(leak, leak.inputs, x, guessed, own)]


def _near(
    leak: Leak, answers: Tensor, x: Tensor, guessed: Tensor, own: list[list[int]]
) -> list[float]:
    """The leakage of every row of `x`, by the answers for it."""
    found, energy = flat(answers), x.square().sum(1).clamp_min(_TINY)
    sure = torch.zeros(len(found)) if leak.inputs_exact is None else leak.inputs_exact.cpu()
    near = []
    for i, places in enumerate(own):
        off = (found[places] - x[i]).square().sum(1).nan_to_num(math.inf)
        certified = [1 - float(off[k] / energy[i]) for k, j in enumerate(places) if bool(sure[j])]
        near.append(min(max([0.0, *(1 - off / guessed[i]).tolist(), *certified]), 1.0))
    return near


def _by_pictures(leak: Leak, truth: Truth, own: list[list[int]]) -> list[Shares]:
    """On pixels, and on pixels up to their tone."""
    if (
        leak.images is None
        or not len(leak.images)
        or leak.images.shape[1:] != truth.images.shape[1:]
    ):
        return [Shares()] * len(truth.images)
    found, pictures = leak.images.detach().cpu().float(), truth.images.detach().cpu().float()
    size, looks = pictures[0].numel(), truth.looks()
    guessed = (truth.guessed(truth.images, public_picture(truth.images)) / size).tolist()
    near = looks
    if leak.blank is not None and leak.blank.shape == pictures.shape[1:]:
        # what the inverse draws of nothing is a guess as well
        blank = leak.blank.detach().cpu().float()
        guessed = [
            min(value, max(float((blank - picture).square().mean()), _TINY))
            for value, picture in zip(guessed, pictures, strict=True)
        ]
        cosines = [max(picture_cosine(blank, picture), 0.0) for picture in pictures]
        looks = [min(one, 1 - cosine**2) for one, cosine in zip(looks, cosines, strict=True)]
        near = [_NEARER * one for one in looks]
    shares = []
    for i, places in enumerate(own):
        parts = [0.0]
        for j in places:
            parts.append(1 - 10 ** (-psnr(found[j], pictures[i]) / 10) / guessed[i])
            cosine = picture_cosine(found[j], pictures[i])
            known = cosine**2 if cosine > 0 else 0.0
            parts.append(1 - (1 - known) / max(looks[i], _TINY))
            # recognizable, and nearer than a typical sample
            if known >= ALIKE and 1 - known < near[i]:
                parts.append(known)
        shares.append(min(max(parts), 1.0))
    return [Shares(sample=value) for value in shares]


def _larger(one: float, other: float) -> float:
    return other if math.isnan(one) or one < other else one


@dataclass(frozen=True)
class LabelsNamed:
    """How many labels were named, and how many of them are right; None where the truth is not
    known."""

    named: int
    right: int | None = None

    @property
    def sentence(self) -> str:
        named = f"{self.named} label{'s' if self.named != 1 else ''} named"
        return named if self.right is None else f"{named}, {self.right} right"


@dataclass(frozen=True)
class Tried:
    """`leakages` are of every true sample, and empty where the attack refused or the truth is not
    known.

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
    def of(
        cls,
        attempt: Attempt,
        leakages: list[float],
        labels: LabelsRead | None = None,
        *,
        made_up: bool = False,
    ) -> Tried:
        """`made_up`: what an attack found without a certificate stands for no sample."""
        leak = attempt.leak
        if attempt.labels is not None:
            right = None if labels is None else labels.right
            return cls(
                attempt.method, remark=attempt.blind, labels=LabelsNamed(len(attempt.labels), right)
            )
        if leak is None:
            return cls(attempt.method, refused=True, remark=attempt.refused)
        found = 0 if made_up and not leak.exact else leak.batch_size
        return cls(
            attempt.method, found, leakages, leak.exact, leak.predicted_error, remark=attempt.blind
        )

    @property
    def worst(self) -> float:
        return max(self.leakages, default=math.nan)

    @property
    def shown_worst(self) -> float:
        """The largest leakage, NaN where that is little and the attack does not apply: never 0
        %."""
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
            expects = (
                ""
                if math.isnan(self.predicted_error)
                else f", predicted error {error(self.predicted_error)}"
            )
            return f"{sample_count(self.found)}, {sure}{expects}"
        over = sum(value >= DEFAULT_LEVEL for value in self.leakages)
        if over:
            return f"{over} of {len(self.leakages)} samples, up to {percent(self.worst)}"
        if not self.remark:
            most = percent(self.worst)
            return "nothing" if most == percent(0.0) else f"nothing (at most {most})"
        if self.remark == PROVES_NOTHING:  # it did apply, and looked
            return "nothing; a search that finds no picture proves nothing"
        if code_of(self.remark) is Code.CUT_SHORT:  # so did this one, until its time was over
            return "nothing in its time"
        return "nothing, and does not apply"


def strongest(tried: list[Tried], samples: int) -> list[str]:
    """For every sample the attack that got the most of it; of equals, the first."""
    answered = [one for one in tried if one.leakages]
    return [
        max(
            ((one.leakages[i], one.attack) for one in answered),
            key=lambda pair: pair[0],
            default=(0.0, ""),
        )[1]
        for i in range(samples)
    ]
