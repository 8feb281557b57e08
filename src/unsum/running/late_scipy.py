"""What we use of scipy, imported when it is first called: it would make `import unsum` a third
slower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def linear_sum_assignment(cost: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the cheapest pairing."""
    from scipy.optimize import linear_sum_assignment as solve

    rows, columns = solve(cost)
    return np.asarray(rows), np.asarray(columns)


def root(function: Callable[[float], float], low: float, high: float, *, tolerance: float) -> float:
    """Where `function` changes its sign between `low` and `high`."""
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=tolerance, rtol=tolerance))


def chi_square_quantile(probability: float, degrees: int) -> float:
    from scipy.special import gammaincinv

    return 2 * float(gammaincinv(degrees / 2, probability))


def beta_beyond(share: float, inside: float, outside: float) -> float:
    """The chance that a share with these two Beta parameters is larger."""
    from scipy.special import betaincc

    return float(betaincc(inside, outside, share))


def ward_clusters(rows: NDArray[np.float64], number: int) -> NDArray[np.int32]:
    """Which of `number` clusters each row belongs to, by Ward's method."""
    from scipy.cluster.hierarchy import fcluster, linkage

    return np.asarray(fcluster(linkage(rows, "ward"), number, "maxclust"))
