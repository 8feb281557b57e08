"""What nobody can exceed: an upper limit for every sample, with what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from unsum.ceiling.bound import CONFIDENCE, Bracket, Distances, as_tensor, limits_of
from unsum.ceiling.observer import Observer
from unsum.ceiling.worst_case import WorstCase
from unsum.defend.added import AddedNoise
from unsum.showing.cards import of_ceiling
from unsum.showing.level import DEFAULT_LEVEL

Unit = Literal["picture", "row", "text", "sample"]
Decision = Literal["below", "above", "open"]

ASSUMED = (
    "The ceiling assumes that the noise is as declared and independent, and that each component of "
    "a sample (a cell, a token) has one of two values whatever the others have; the attacker may "
    "know everything else, and leakage is what the update adds to that."
)
BARE = "No noise is added to the update, so that nothing random hides the samples."
BARE_SUM = (
    "No client adds noise, and updates of public data cannot show what the sum of other clients' "
    "updates hides by itself."
)
EVERY_STEP = "Noise is added in every local step; this is the mechanism's bound over all steps."
UNSEEN = (
    "A function of your own follows the noise, and nobody can see what it knows of the samples; "
    "make it a Defense that does not see the batch, or put it before the noise."
)
UNNOISED = (
    "A part of what is sent carries no noise (BatchNorm's statistics), "
    "and it depends on the sample."
)


@dataclass(frozen=True, eq=False)
class Ceiling:
    """Upper limits of what any attacker can read of each sample, whatever it computes.

    `samples` (B,) are limits in the unit of `audit.leakages`: 1 is the sample, 0 is nothing beyond
    what an attacker guesses without the update. `labels` (B,) is the largest chance to tell a label
    from its likeliest alternative, NaN where targets are no classes. `guesses` (B,) is the largest
    chance to name one of two values of a random component, cell or token. `present` (B,) is the
    largest chance to tell whether the sample took part, where that was asked for. `cells`
    (B, columns) is of tables the largest chance to guess a cell right, of its value and any other
    one, all other cells known; NaN where a row has too many categories to go through. `any_label`
    (B,) is the largest chance to tell a label from any of the others (of many classes some), where
    an audit looked. All limits of `samples` together hold with a confidence of 99 %; they rest on
    `pairs` pairs of worlds.

    `lower` (B,) are lower limits of the same ceilings: where they reach a level, more pairs would
    not prove that the sample stays below it. Where `estimate` says so, nothing of this is proven.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> bound = unsum.ceiling(torch.nn.Linear(64, 20), data, noise=10.0)
        >>> bound.decided(0.2), bool(bound.after(100).max() > bound.highest)
        ('below', True)
    """

    samples: Tensor
    labels: Tensor
    pairs: int
    lower: Tensor
    guesses: Tensor
    noise: AddedNoise | None
    unit: Unit
    observer: Observer = field(default_factory=Observer)
    present: Tensor | None = None
    cells: Tensor | None = None
    any_label: Tensor | None = None
    discrete: bool = False  # whether a part of a sample is right or wrong
    worst: WorstCase | None = None  # of the mechanism, for all data
    by_bits: float = (
        math.nan
    )  # the second bound of an update without noise, on average over samples
    why: str = ""  # of limits that no measurement gave
    estimate: str = ""  # why all this is an estimate, in a sentence
    seconds: float = 0.0
    distances: Distances | None = field(default=None, repr=False)

    @property
    def highest(self) -> float:
        return float(self.samples.max())

    @property
    def mean(self) -> float:
        return float(self.samples.mean())

    @property
    def by_mechanism(self) -> bool:
        """Whether the mechanism alone proves every limit, for any data."""
        return self.worst is not None and self.highest >= self.cap

    @property
    def cap(self) -> float:
        """The mechanism's own bound, in the unit of these samples; 1 where there is none."""
        return 1.0 if self.worst is None else self.worst.cap(self.discrete)

    def decided(self, level: float = DEFAULT_LEVEL) -> Decision:
        """`below`: every sample's ceiling is proven to be below the level. `above`: one sample's is
        not. An estimate decides nothing; what the mechanism proves does.
        """
        if self.estimate:
            return "below" if self.cap < level else "open"
        if bool((self.samples < level).all()):
            return "below"
        return "above" if bool((self.lower >= level).any()) else "open"

    def under(self, noise: AddedNoise | None, *, observer: Observer | None = None) -> Ceiling:
        """The same pairs of worlds under another noise, without a bound for labels or presence."""
        if self.distances is None:
            raise ValueError("the distances were not kept")
        observer = observer or self.observer
        limits = limits_of(self.distances, observer.sees(noise))
        changed = of_limits(limits, noise=noise, unit=self.unit, observer=observer)
        return replace(changed, distances=self.distances, discrete=self.discrete)

    def after(self, rounds: int) -> Tensor:
        """(B,) limits for a client that sends as many such updates of the same data, each with its
        own noise.

        Every round is taken to be like this one; `unsum.audit.ceilings.over_rounds` measures each.
        """
        cap = 1.0 if self.worst is None else self.worst.after(rounds).cap(self.discrete)
        if self.distances is None:
            return torch.full_like(self.samples, cap)
        seen = self.observer.sees(self.noise)
        limits = limits_of(self.distances.repeated(rounds), seen)
        return as_tensor([one.capped(cap).upper for one in limits])

    def __repr__(self) -> str:
        top, what = f"{100 * self.highest:.0f} %", f"{len(self.samples)} {self.unit}s"
        most = f"an estimate of {top}" if self.estimate else f"at most {top}"
        return f"Ceiling({most} of any of {what}, {self.pairs} pairs of worlds)"

    def _repr_html_(self) -> str:
        """For notebooks: a card for every sample."""
        top = f"Nobody reads more than {100 * self.highest:.0f} % of any {self.unit}"
        said = [self.why, self.observer.sentence, ASSUMED]
        if self.estimate:
            top = f"The ceiling is estimated at {100 * self.highest:.0f} % of a {self.unit}"
            said = [self.why, self.estimate]
        return of_ceiling(self, f"{top}.", [sentence for sentence in said if sentence])

    def to_dict(self) -> dict[str, Any]:
        """In plain types; NaN is left to whoever writes it."""
        worst = self.worst
        return {
            "samples": self.samples.tolist(),
            "lower": self.lower.tolist(),
            "labels": self.labels.tolist(),
            "guesses": self.guesses.tolist(),
            "present": None if self.present is None else self.present.tolist(),
            "cells": None if self.cells is None else self.cells.tolist(),
            "any_label": None if self.any_label is None else self.any_label.tolist(),
            "unit": self.unit,
            "pairs": self.pairs,
            "confidence": CONFIDENCE,
            "noise": None if self.noise is None else vars(self.noise),
            "observer": vars(self.observer),
            "worst_case": None
            if worst is None
            else {"mu": worst.mu, "leakage": self.cap, "guess": worst.guess},
            "by_bits": self.by_bits,
            "why": self.why or None,
            "estimate": self.estimate or None,
            "assumed": ASSUMED,
            "seconds": self.seconds,
        }


def hidden(chances: Tensor) -> bool:
    """Whether nobody tells any of two values by the level better than a guess."""
    return bool((2 * chances - 1 < DEFAULT_LEVEL).all())  # NaN is not


def of_limits(
    limits: list[Bracket], *, noise: AddedNoise | None, unit: Unit, observer: Observer
) -> Ceiling:
    """A result out of the limits of all samples."""
    nothing = as_tensor([math.nan] * len(limits))
    return Ceiling(
        samples=as_tensor([one.upper for one in limits]),
        labels=nothing,
        pairs=sum(one.pairs for one in limits),
        lower=as_tensor([one.lower for one in limits]),
        guesses=as_tensor([one.guess for one in limits]),
        noise=noise,
        unit=unit,
        observer=observer,
    )
