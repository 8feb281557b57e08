"""Matrix-free least squares (CGLS): min ‖J x − r‖² + x·prior·x, for functions that apply J and its transpose.

Written here because scipy's LSMR would move every product to the CPU; with tensors in and out it runs where the model lives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Fit:
    """The solution, and whether the normal residual fell below the tolerance."""

    x: Tensor
    converged: bool
    iterations: int


def least_squares(
    J: Product,
    transpose: Product,
    right: Tensor,
    *,
    prior: float = 0.0,
    tolerance: float = 1e-10,
    iterations: int = 500,
) -> Fit:
    """Solve (JᵀJ + prior) x = Jᵀ right by conjugate gradients without forming JᵀJ; from zero, so of least norm for prior 0."""
    return normal_solve(J, transpose, transpose(right), prior=prior, tolerance=tolerance, iterations=iterations)


def normal_solve(
    J: Product, transpose: Product, target: Tensor, *, prior: float, tolerance: float, iterations: int
) -> Fit:
    """Solve (JᵀJ + prior) x = target."""
    x = torch.zeros_like(target)
    s = target.clone()
    p, gamma = s.clone(), float(s.square().sum())
    limit = tolerance**2 * gamma
    for count in range(iterations):
        if gamma <= limit or gamma == 0:
            return Fit(x, True, count)
        Jp = J(p)
        curvature = float(Jp.square().sum()) + prior * float(p.square().sum())
        if curvature <= 0:
            break
        step = gamma / curvature
        x = x + step * p
        s = s - step * (transpose(Jp) + prior * p)
        previous, gamma = gamma, float(s.square().sum())
        p = s + (gamma / previous) * p
    return Fit(x, gamma <= limit, iterations)
