"""The simplex hunt: for classes nobody carries, the rows U_c / ∇b_c lie in the simplex whose corners are the t_i."""

from __future__ import annotations

import torch
from torch import Tensor


def hunt_corners(rows: Tensor, count: int) -> Tensor:
    """Indices of `count` rows that span the simplex best: successive projection, as in separable factorization.

    A constant coordinate makes it affine. A trained model's softmax is peaked, so many rows sit almost on a corner.
    """
    constant = rows.new_full((len(rows), 1), float(rows.norm(dim=1).median()))
    left = torch.cat([rows, constant], dim=1)
    picked = []
    for _ in range(min(count, len(rows))):
        index = left.square().sum(1).argmax()
        corner = left[index] / left[index].norm().clamp_min(1e-300)
        left = left - (left @ corner)[:, None] * corner
        picked.append(index)
    return torch.stack(picked)
