"""Columns as combinations of atoms: x = Σ_i z_i g_i with z ≥ 0, for all columns of a gradient at once.

Written by hand because scipy's `nnls` takes one column at a time: a hundred thousand of them would take minutes.
"""

from __future__ import annotations

import torch
from torch import Tensor

_AT_ONCE = 4096  # columns whose supports are solved for together


def code(atoms: Tensor, X: Tensor, Z: Tensor, allowed: Tensor, steps: int, *, signed: Tensor | None = None) -> Tensor:
    """(B, N) coefficients after some accelerated projected-gradient steps from `Z`; where not `allowed` they are 0.

    Rows that are `signed` (B,) may be negative: their atoms stand for a span whose corners are not known yet.
    """
    K, q = atoms @ atoms.T, atoms @ X
    steepest = torch.linalg.eigvalsh(K.double())[-1].to(K.dtype)
    floor = torch.zeros_like(K[:, :1]) if signed is None else torch.where(signed, -torch.inf, 0.0)[:, None].to(K.dtype)
    ahead, momentum = Z, 1.0
    for _ in range(steps):
        there = torch.maximum(ahead - (K @ ahead - q) / steepest, floor) * allowed
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = there + (momentum - 1) / following * (there - Z)
        Z, momentum = there, following
    return Z


def on_support(atoms: Tensor, X: Tensor, Z: Tensor, smallest: float) -> Tensor:
    """The least-squares coefficients with everything below `smallest` of a column's largest set to zero, in float64."""
    K, q = (atoms @ atoms.T).double(), (atoms @ X).double()
    used = smallest * Z.amax(0) < Z
    solved = []
    for start in range(0, X.shape[1], _AT_ONCE):
        here = used[:, start : start + _AT_ONCE].T.double()  # (n, B)
        normal = here[:, :, None] * K * here[:, None, :] + torch.diag_embed(1 - here + 1e-12)
        solved.append(torch.linalg.solve(normal, here * q[:, start : start + _AT_ONCE].T).T)
    return torch.cat(solved, dim=1).to(X.dtype)
