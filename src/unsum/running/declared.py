"""What a client declares of itself, checked before memory is taken for it: a number costs its
sender nothing.

A batch of B samples takes tables of B² numbers to solve, T steps one of T². A counter in a client's
message, or one line of metadata, could otherwise ask for any amount. Whatever makes a table of such
a number asks here first.
"""

from __future__ import annotations

import math
from typing import Any

from unsum.errors import UnsumError, shown

# the largest batch that published attacks on one update were tried on (iLRG); a table of 128 MiB
MOST_SAMPLES = 4096
_MOST_PIXELS = 1 << 23  # of all pictures, with their colors: 55 of 224 × 224, 2,730 of 32 × 32
MOST_STEPS = 512  # each is followed by a search inside the search for the step before it


def check_samples(count: float) -> None:
    """Refuse a batch that is too large to be solved for, whoever says that it is so large."""
    if not count <= MOST_SAMPLES:
        raise UnsumError(
            f"The batch is said to hold {shown(count)} samples, and at most {MOST_SAMPLES:,} are "
            "looked for in one update; nothing was read out of it. Leave the batch size out if it "
            "is wrong."
        )


def check_steps(count: int) -> None:
    """Refuse more local steps than can be followed one by one."""
    if count > MOST_STEPS:
        raise UnsumError(
            f"The client is said to have taken {shown(count)} local steps, and at most "
            f"{MOST_STEPS} are followed one by one; not audited. The attack 'exact' takes the "
            "update for one gradient."
        )


def check_pictures(count: int, shape: tuple[int, ...]) -> None:
    """Refuse to match as many pictures as a client merely says there are, where that takes
    gigabytes."""
    if count * math.prod(shape) > _MOST_PIXELS:
        raise UnsumError(
            f"The update says that it holds {shown(count)} samples, too many to be matched as "
            f"pictures of {shown(shape)} on its word alone; give batch_size= if you believe it."
        )


def check_whole(what: str, value: Any) -> None:
    """Refuse what is no whole number from 1 on that 64 bits hold; `True` is none."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**63:
        raise UnsumError(
            f"{what} must be a whole number of at least 1 that 64 bits hold, not {shown(value)}."
        )


def check_seed(seed: Any) -> None:
    """Refuse what no generator of random numbers takes as its seed."""
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise UnsumError(f"The seed must be a whole number that 64 bits hold, not {shown(seed)}.")


def check_positive(what: str, value: Any) -> None:
    if not 0 < _float(value) < math.inf:
        raise UnsumError(f"{what} must be positive and finite, not {shown(value)}.")


def check_share(what: str, value: Any, below: float = math.inf) -> None:
    """Refuse what is no number from 0 to below `below`."""
    if not 0 <= _float(value) < below:
        room = "finite" if below == math.inf else f"below {below:g}"
        raise UnsumError(f"{what} must be at least 0 and {room}, not {shown(value)}.")


def _float(value: Any) -> float:
    """NaN for what is no number, and for whole numbers that no float holds."""
    try:
        return (
            float(value)
            if isinstance(value, int | float) and not isinstance(value, bool)
            else math.nan
        )
    except OverflowError:
        return math.nan
