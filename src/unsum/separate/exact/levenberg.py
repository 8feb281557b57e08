"""Levenberg–Marquardt on the equation, with Marquardt's scaling and Nielsen's damping.

Small systems are solved by Cholesky on the normal matrix, larger ones by preconditioned conjugate gradients for as long
as these converge.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.deadline import out_of_time
from unsum.separate.exact.conjugate import NormalSystem
from unsum.separate.exact.equation import Equation, Linearized, Unknowns

_SMALL = 300  # unknowns up to which the normal matrix is formed at once
_AFFORDABLE = 1e9  # floating-point operations up to which it is formed where conjugate gradients give up


@dataclass(frozen=True)
class Solution:
    """Where the solver stopped; `cost` is the squared norm of the weighted residual."""

    at: Unknowns
    cost: float
    iterations: int


def can_be_dense(T: Tensor, C: int) -> bool:
    """Whether the normal matrix of this many unknowns can be formed and factored in a fraction of a second."""
    return _dense_work(T.numel(), C) < _AFFORDABLE


def seconds_per_iteration(unknowns: int, C: int) -> float:
    """What one iteration takes at worst on one core, roughly: small products cost their overhead, large ones their size."""
    iterative = 100 * (2e-4 + 8.0 * C * unknowns / 5e9)
    dense = 5e-4 + _dense_work(unknowns, C) / 1e10
    return min(dense, iterative) if unknowns > _SMALL else dense


def _dense_work(unknowns: int, C: int) -> float:
    return 2.0 * C * unknowns**2 + unknowns**3 / 3


def solve(equation: Equation, start: Unknowns, iterations: int = 100, *, in_noise_units: bool = False) -> Solution:
    """Minimize ‖residual‖² from `start`, until it stagnates or for `iterations`.

    Where the residual comes in units of its noise, what is below that noise need not be pursued further.
    """
    here = Linearized(equation, start)
    cost = float(here.cost)
    damping, growth, stalled = 1e-3, 2.0, 0
    N = here.normal_matrix() if start.T.numel() <= _SMALL else None
    g = here.pull(here.residual)
    for iteration in range(1, iterations + 1):
        if out_of_time("further steps of the solver"):
            return Solution(here.at, cost, iteration)
        if N is None:
            step, converged = _iterative_step(here, g, damping)
            if not converged and can_be_dense(start.T, len(equation.b)):
                N = here.normal_matrix()
        if N is not None:
            step = _dense_step(N, g, damping)
        there = Linearized(equation, here.at.moved(step))
        new_cost = float(there.cost)
        promised = -float(2 * (step @ g) + here.push(step).square().sum())
        gain = (cost - new_cost) / promised if promised > 0 else -1.0
        if not gain > 0:  # also when new_cost is NaN
            damping, growth = damping * growth, growth * 2
            if damping > 1e12 or promised < 1e-14 * cost:
                return Solution(here.at, cost, iteration)
            continue
        stalled = stalled + 1 if new_cost > 0.999 * cost else 0
        # Not where steps are inexact: a long valley may lead on below what the noise was taken for.
        settled = N is not None and in_noise_units and 0.9 * cost < new_cost < here.residual.numel()
        here, cost = there, new_cost
        damping, growth = max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), 1e-15), 2.0
        if settled or stalled >= 3:
            return Solution(here.at, cost, iteration)
        N = here.normal_matrix() if N is not None else None
        g = here.pull(here.residual)
    return Solution(here.at, cost, iterations)


def _dense_step(N: Tensor, g: Tensor, damping: float) -> Tensor:
    """−(N + damping·diag N)⁻¹ g; the damping grows until the matrix is positive definite."""
    diagonal = N.diagonal().clamp_min(N.diagonal().max() * 1e-30)
    for _ in range(60):
        factor, failed = torch.linalg.cholesky_ex(N + torch.diag(diagonal * damping))
        if not bool(failed):
            return -torch.cholesky_solve(g[:, None], factor)[:, 0]
        damping = damping * 10
    return torch.zeros_like(g)


def _iterative_step(here: Linearized, g: Tensor, damping: float) -> tuple[Tensor, bool]:
    """The same, to the accuracy that a step in a nonlinear problem deserves, and whether it was reached."""
    return NormalSystem.damped(here, damping).solve(-g, tolerance=0.1, iterations=100)
