"""What pruning removed: features known to be small, replaced by what such features are on average.

The survivors of a row crowd towards the threshold. How densely, and how fast that changes, tells how many features lie just
below it; the others of the row's missing entries are zeros, as most features after a ReLU are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_NEAR, _FAR = 1.5, 2.25  # bounds of the two windows above the threshold, in its units
_STEEPEST = 3.0  # e-folds per threshold that the density may rise by, towards zero


def below_threshold(sizes: Tensor, missing: int) -> tuple[float, float]:
    """Mean and variance of the missing entries, in units of the threshold.

    Args:
        sizes: (n,) magnitudes of the survivors over the threshold, all of at least 1.
        missing: how many entries of the same row did not survive.
    """
    near = float(((sizes >= 1) & (sizes < _NEAR)).sum()) / (_NEAR - 1)
    far = float(((sizes >= _NEAR) & (sizes < _FAR)).sum()) / (_FAR - _NEAR)
    if missing == 0 or near == 0:
        return 0.0, 0.0
    middle = (1 + _NEAR) / 2
    rate = math.log(near / far) / ((_NEAR + _FAR) / 2 - middle) if far > 0 else _STEEPEST
    rate = min(max(rate, 0.0), _STEEPEST)
    # Density near·exp(rate (middle − r)) for 0 < r < 1, by quadrature.
    r = torch.linspace(0, 1, 101, dtype=torch.float64)
    density = near * torch.exp(rate * (middle - r))
    count, first, second = (float(torch.trapezoid(density * r**k, r)) for k in range(3))
    share = min(count, float(missing)) / (count * missing)
    mean = first * share
    return mean, max(second * share - mean**2, 0.0)
