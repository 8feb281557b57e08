"""Bracket for the mean of numbers from 0 to 1 that hold with the confidence asked for, at any time.

Betting (Waudby-Smith and Ramdas 2024). Against the hypothesis that the mean is m or more, a bet θ
on each draw x multiplies the capital by

    1 + θ (m − x)/(1 − m),      0 ≤ θ < 1,

whose expectation is at most 1 if the hypothesis holds. Capital above 1/α refutes it, however the
number of draws was chosen (Ville). Several fixed θ are played side by side; their mean capital
rises with m, so that all means above the smallest refuted one are refuted too.

Draws may come in cycles, one from every stratum of equal mass: with one θ for the whole cycle, the
product of the expectations is at most what equal means would give (the inequality of arithmetic and
geometric means). The limits are taken at ends of cycles.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

# [1] bets, with the share of the capital on each. Most lies on large ones: the means that matter
# are near 0 or 1, and there n equal draws refute 1 − (α · share)^(1/n). Checked against exact
# binomial coverage in tests/ceiling/test_interval.py.
_BETS = np.array([0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.999])
_SHARES = np.array([0.03, 0.03, 0.04, 0.06, 0.07, 0.08, 0.09, 0.6])
_STEPS = 40  # halvings of the search for the limit: 1e-12


def upper_limit(draws: ArrayLike, confidence: float) -> float:
    """The least m such that a mean of m or more is refuted; 1 where none is.

    >>> round(upper_limit([0.0] * 64, 0.99), 2), upper_limit([1.0] * 9, 0.99)
    (0.07, 1.0)
    """
    x = np.asarray(draws, dtype=np.float64)
    if not len(x):
        return 1.0
    wanted = -math.log(1 - confidence)
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _log_capital(x, middle) >= wanted:
            high = middle
        else:
            low = middle
    return high


def lower_limit(draws: ArrayLike, confidence: float) -> float:
    """The same from below.

    >>> round(lower_limit([1.0] * 64, 0.99), 2), lower_limit([0.0] * 64, 0.99)
    (0.93, 0.0)
    """
    return 1 - upper_limit(1 - np.asarray(draws, dtype=np.float64), confidence)


def _log_capital(x: NDArray[np.float64], m: float) -> float:
    """log Σ_θ share · Π (1 + θ (m − x)/(1 − m))."""
    if m >= 1:
        return math.inf
    factors = 1 + _BETS[:, None] * ((m - x) / (1 - m))[None, :]
    logs = np.log(_SHARES) + np.log(np.maximum(factors, 1e-300)).sum(1)
    return float(np.logaddexp.reduce(logs))
