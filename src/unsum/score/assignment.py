"""Which recovered sample stands for which true one: the pairing that serves the attack best, found afterwards."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def assign(found: Tensor, true: Tensor) -> list[int | None]:
    """For every row of `true`, the index of its partner in `found`, or None where `found` has too few rows.

    The pairing minimizes the sum of squared distances (Hungarian algorithm), each capped at the true row's own squared
    norm: a hopeless row must not decide where the good ones go.
    """
    a, b = found.flatten(1).double().cpu(), true.flatten(1).double().cpu()
    distances = torch.cdist(b, a).square()
    cost = torch.minimum(distances, b.square().sum(1, keepdim=True).clamp_min(1e-12)).numpy()
    rows, columns = linear_sum_assignment(np.nan_to_num(cost, nan=cost.size and np.nanmax(cost)))
    partner: list[int | None] = [None] * len(b)
    for row, column in zip(rows, columns, strict=True):
        partner[int(row)] = int(column)
    return partner
