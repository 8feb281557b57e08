"""What a ceiling says, in words: the sentence that decides, and those that say what it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from unsum.audit.wording import percent
from unsum.ceiling.bound import CONFIDENCE
from unsum.ceiling.result import ASSUMED, Ceiling, hidden
from unsum.ceiling.worst_case import DELTA
from unsum.showing.level import DEFAULT_LEVEL


def headline(found: Ceiling, level: float) -> str:
    """Whether every sample is proven to be below the level."""
    what, most = f"{found.unit}", percent(found.highest)
    if found.estimate and found.decided(level) != "below":
        return f"Estimated, not proven: the ceiling of every {what} is about {most} or less."
    if found.decided(level) == "below":
        return (
            f"Proven: nobody reads {percent(level)} of any {what} out of this update (at most "
            f"{most})."
        )
    if found.decided(level) == "above":
        return f"Not proven: the ceiling of at least one {what} is {percent(level)} or more."
    return (
        f"Not decided: {found.pairs} pairs of worlds leave the ceiling at {most}, and time was "
        "over; allow more time or pairs."
    )


def details(found: Ceiling) -> list[str]:
    """What it rests on, who looks, and what is assumed."""
    return [
        sentence
        for sentence in (
            found.why,
            _pairs(found),
            _labels(found),
            found.estimate or found.observer.sentence,
            _worst(found),
            _bits(found),
            "" if found.estimate else ASSUMED,
        )
        if sentence
    ]


def _pairs(found: Ceiling) -> str:
    if found.why or found.estimate:
        return ""
    noise = "no noise" if found.noise is None else str(found.noise)
    if not found.pairs:
        return (
            f"No pair of worlds had to be played under {noise}: what the mechanism leaves is below "
            "the level already."
        )
    return (
        f"Measured with {found.pairs} pairs of worlds under {noise}; all limits hold together with "
        f"a confidence of {percent(CONFIDENCE)}."
    )


def _labels(found: Ceiling) -> str:
    told = [float(value) for value in found.labels if not math.isnan(float(value))]
    if not told:
        return ""
    if max(told) >= _CERTAIN and not found.estimate:
        return (
            "Of the labels nothing is proven: one at least may be told from its likeliest "
            "alternative with certainty."
        )
    label = "By the same estimate a label" if found.estimate else "A label"
    return (
        f"{label} is told from its likeliest alternative with a probability of at most "
        f"{max(told):.3f}."
    )


def _worst(found: Ceiling) -> str:
    if found.worst is None:
        return ""
    return (
        "For any data, the mechanism (clip, then noise) leaves at most "
        f"{percent(found.cap)}: {found.worst.what}, at a distance of μ = "
        f"{found.worst.mu:.3g}. That is ε = {found.worst.epsilon(DELTA):.3g} at δ = {DELTA:g}; "
        "whoever guesses right once in ten without the update does so in at most "
        f"{percent(found.worst.success(0.1))} of cases with it."
    )


def _bits(found: Ceiling) -> str:
    if math.isnan(found.by_bits) or found.by_bits >= 0.995:
        return ""
    return (
        f"The bits of the update hold at most {percent(found.by_bits)} of a sample on average, for "
        "an attacker who knows no more of photos than their spectrum."
    )


_CERTAIN = 0.9995  # [1] a chance to tell a label that reads as 1.000
# [1] of the scale of leakage: by so much one sample may lie above a mean over its components
SCATTER = 0.05


def exceeding(own: Sequence[float], bound: Ceiling) -> list[int]:
    """The samples of which more was found than anybody could read."""
    limits = zip(own, bound.samples.tolist(), strict=False)
    return [i for i, (value, limit) in enumerate(limits) if value > limit + SCATTER]


def exceeded(own: Sequence[float], bound: Ceiling) -> str:
    """A sentence where more was found of a sample than anybody could read: one of the two is
    wrong."""
    over = exceeding(own, bound)
    if not over:
        return ""
    value, limit = max((own[i], float(bound.samples[i])) for i in over)
    return (
        f"Found above its ceiling: {percent(value)} of a {bound.unit} was found, and at most "
        f"{percent(limit)} can be read. One of the two is wrong; please report this with the "
        "command and the seed."
    )


def beside(bound: Ceiling) -> str:
    """The ceiling as one sentence of a verdict."""
    if bound.why:
        return f"The ceiling is {percent(bound.highest)}: {bound.why[0].lower()}{bound.why[1:]}"
    if bound.decided(DEFAULT_LEVEL) == "above":
        i = int(bound.lower.argmax())
        low, high = percent(float(bound.lower[i])), percent(float(bound.samples[i]))
        lies = f"is {high}" if low == high else f"lies between {low} and {high}"
        return (
            f"The ceiling does not protect: that of one {bound.unit} {lies}, from {bound.pairs} "
            "pairs of worlds, so that other attacks may read as much."
        )
    if bound.decided(DEFAULT_LEVEL) == "open" and not bound.pairs:
        return (
            "Whether the ceiling protects is not decided: time was over before a single pair of "
            "worlds had been played."
        )
    if bound.decided(DEFAULT_LEVEL) == "open":
        return (
            f"Whether the ceiling protects is not decided: from the {bound.pairs} pairs of worlds "
            f"that there was time for, that of one {bound.unit} may be {percent(bound.highest)}."
        )
    least = percent(float(bound.samples.min()))
    between = (
        percent(bound.highest)
        if least == percent(bound.highest)
        else f"{least} to {percent(bound.highest)}"
    )
    return (
        f"The ceiling is {between}: nobody reads more of a {bound.unit} than that, proven with "
        f"{percent(CONFIDENCE)} confidence from {bound.pairs} pairs of worlds."
        if not bound.by_mechanism
        else f"The ceiling is {between}: nobody reads more of a {bound.unit} than that, whatever "
        "the data, because the update is clipped before the noise."
    )


def printed(bound: Ceiling | None) -> str:
    """The ceiling as a line of a printed audit; empty where there is none."""
    if bound is None:
        return ""
    why = (
        bound.why[:1].lower() + bound.why[1:].rstrip(".")
        if bound.why
        else f"{bound.pairs} pairs of worlds"
    )
    return f"Ceiling: {percent(bound.highest)} ({why})."


class Bounded(Protocol):
    """A point of a comparison or sweep, as far as its ceiling goes."""

    @property
    def ceiling(self) -> float: ...

    @property
    def ceiling_mean(self) -> float: ...


def ceiling_of(point: Bounded) -> str:
    """The largest ceiling, or the mean where only that was measured, as a table has it."""
    if math.isnan(point.ceiling) and not math.isnan(point.ceiling_mean):
        return f"{percent(point.ceiling_mean)} (mean)"
    return percent(point.ceiling)


def stands_at(point: Bounded) -> str:
    """The same as a part of a sentence."""
    if math.isnan(point.ceiling) and math.isnan(point.ceiling_mean):
        return "the ceiling is not known"
    return f"the ceiling is {ceiling_of(point).replace('(mean)', 'on average')}"


LUCK = (
    "Labels named right are luck: nobody tells one from any other that it was held against much "
    "better than by a guess."
)


def hides_labels(bound: Ceiling) -> bool:
    """Whether nobody tells any label from another one by the level better than a guess: neither
    from its likeliest alternative nor from the others, which may lie further apart."""
    return hidden(bound.labels) and bound.any_label is not None and hidden(bound.any_label)


def labels_open(bound: Ceiling) -> str:
    """A sentence where labels may be told although the samples are protected; else empty."""
    chances = [one for one in (bound.labels, bound.any_label) if one is not None]
    told = [float(one.max()) for one in chances if not bool(one.isnan().any()) and not hidden(one)]
    if not told:
        return ""
    return (
        "The ceiling of the samples says nothing of their labels: one can be told from another "
        f"with a chance of up to {percent(max(told))}."
    )
