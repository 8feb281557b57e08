"""What a ceiling says, in words: the sentence that decides, and those that say what it rests on."""

from __future__ import annotations

import math

from unsum.audit.wording import percent
from unsum.ceiling.bound import CONFIDENCE
from unsum.ceiling.result import ASSUMED, Ceiling


def headline(found: Ceiling, level: float) -> str:
    """Whether every sample is proven to be below the level."""
    what, most = f"{found.unit}", percent(found.highest)
    if found.decided(level) == "below":
        return f"Proven: nobody reads {percent(level)} of any {what} out of this update (at most {most})."
    if found.decided(level) == "above":
        return f"Not proven: the ceiling of at least one {what} is {percent(level)} or more."
    return (
        f"Not decided: {found.pairs} pairs of worlds leave the ceiling at {most}, and time was over; "
        "allow more time or pairs."
    )


def details(found: Ceiling) -> list[str]:
    """What it rests on, who looks, and what is assumed."""
    return [
        sentence
        for sentence in (
            found.why,
            _pairs(found),
            _labels(found),
            found.observer.sentence,
            _worst(found),
            _bits(found),
            ASSUMED,
        )
        if sentence
    ]


def _pairs(found: Ceiling) -> str:
    if found.why:
        return ""
    noise = "no noise" if found.noise is None else str(found.noise)
    return (
        f"Measured with {found.pairs} pairs of worlds under {noise[0].lower()}{noise[1:]}; all limits hold "
        f"together with a confidence of {percent(CONFIDENCE)}."
    )


def _labels(found: Ceiling) -> str:
    told = [float(value) for value in found.labels if not math.isnan(float(value))]
    if not told:
        return ""
    return f"A label is told from its likeliest alternative with a probability of at most {max(told):.3f}."


def _worst(found: Ceiling) -> str:
    if found.worst is None:
        return ""
    return (
        f"For any data, the mechanism (clip, then noise) leaves at most {percent(found.worst.leakage)}: "
        f"{found.worst.what}, at a distance of μ = {found.worst.mu:.3g}."
    )


def _bits(found: Ceiling) -> str:
    if math.isnan(found.by_bits) or found.by_bits >= 0.995:
        return ""
    return (
        f"The bits of the update hold at most {percent(found.by_bits)} of a sample on average, for an attacker "
        "who knows no more of photos than their spectrum."
    )
