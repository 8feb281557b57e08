"""Levenberg–Marquardt on the equation: dense normal matrix, Marquardt's scaling, Nielsen's damping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.separate.equation import Equation, Linearised, Unknowns


@dataclass(frozen=True)
class Solution:
    """Where the solver stopped; `cost` is the squared norm of the weighted residual."""

    at: Unknowns
    cost: float
    iterations: int


def work(R: int, C: int) -> float:
    """Floating-point operations of one dense iteration with R samples."""
    return 2.0 * C * R**4 + R**6 / 3


def solve(equation: Equation, start: Unknowns, iterations: int = 100, target: float = 0.0) -> Solution:
    """Minimise ‖residual‖² from `start`; stop at `target`, at stagnation or after `iterations`."""
    here = Linearised(equation, start)
    cost = float(here.cost)
    damping, growth = 1e-3, 2.0
    N, g, stalled = here.normal_matrix(), here.pull(here.residual), 0
    for iteration in range(1, iterations + 1):
        step = _damped_step(N, g, damping)
        there = Linearised(equation, here.at.moved(step))
        new_cost = float(there.cost)
        promised = -float(step @ (2 * g + N @ step))
        gain = (cost - new_cost) / promised if promised > 0 else -1.0
        if not gain > 0:  # also when new_cost is NaN
            damping, growth = damping * growth, growth * 2
            if damping > 1e12 or promised < 1e-14 * cost:
                return Solution(here.at, cost, iteration)
            continue
        stalled = stalled + 1 if new_cost > 0.999 * cost else 0
        here, cost = there, new_cost
        damping, growth = max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), 1e-15), 2.0
        if cost <= target or stalled >= 5:
            return Solution(here.at, cost, iteration)
        N, g = here.normal_matrix(), here.pull(here.residual)
    return Solution(here.at, cost, iterations)


def _damped_step(N: Tensor, g: Tensor, damping: float) -> Tensor:
    """−(N + damping·diag N)⁻¹ g; the damping grows until the matrix is positive definite."""
    diagonal = N.diagonal().clamp_min(N.diagonal().max() * 1e-30)
    while True:
        factor, failed = torch.linalg.cholesky_ex(N + torch.diag(diagonal * damping))
        if not bool(failed):
            return -torch.cholesky_solve(g[:, None], factor)[:, 0]
        damping = damping * 10
