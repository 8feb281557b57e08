"""Levenberg–Marquardt with Marquardt's scaling and Nielsen's damping, once for every least-squares problem here.

A problem says what it is at a point (`LeastSquares`): its cost, its gradient Jᵀr, the damped step, and itself one step further.
`Dense` is such a problem for any residual that can be differentiated automatically.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from unsum.deadline import out_of_time

SMALL = 300  # unknowns up to which the normal matrix is formed at once
_AFFORDABLE = 1e9  # floating-point operations up to which it is formed where conjugate gradients give up
FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-3, 1e-15, 1e12  # of the normal matrix's diagonal
NOTHING = 1e-14  # of the cost: a promise below is rounding
STALLED, PATIENCE = 0.999, 3  # a step that keeps more of the cost than this has stalled; so many in a row are the end


class LeastSquares(Protocol):
    """A least-squares problem at one point; `dense` says whether its steps are exact."""

    cost: float
    dense: bool

    @property
    def gradient(self) -> Tensor:
        """Jᵀ r."""

    def step(self, damping: float) -> Tensor:
        """−(JᵀJ + damping · diag)⁻¹ Jᵀ r."""

    def push(self, step: Tensor) -> Tensor:
        """J step."""

    def moved(self, step: Tensor) -> Self: ...


Problem = TypeVar("Problem", bound=LeastSquares)


def minimize(
    here: Problem, iterations: int, *, enough: float = 0.0, accepted: Callable[[Problem], None] | None = None
) -> Problem:
    """Where the cost stagnates, or after `iterations`. Below the cost `enough` hardly falling is stagnation, too."""
    damping, growth, stalled = FIRST_DAMPING, 2.0, 0
    for _ in range(iterations):
        if out_of_time("further steps of the solver"):
            break
        step = here.step(damping)
        there = here.moved(step)
        promised = -float(2 * (step @ here.gradient) + here.push(step).square().sum())
        gain = (here.cost - there.cost) / promised if promised > 0 else -1.0
        if not gain > 0:  # also when the new cost is NaN
            damping, growth = damping * growth, growth * 2
            if damping > MOST_DAMPING or promised < NOTHING * here.cost:
                break
            continue
        stalled = stalled + 1 if there.cost > STALLED * here.cost else 0
        # Not where steps are inexact: a long valley may lead on below what the noise was taken for.
        settled = here.dense and 0.9 * here.cost < there.cost < enough
        here = there
        damping, growth = max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), LEAST_DAMPING), 2.0
        if accepted is not None:
            accepted(here)
        if settled or stalled >= PATIENCE:
            break
    return here


class Dense:
    """Any residual of a vector of unknowns, by its whole Jacobian; unknowns that are `fixed` stay where they are.

    A residual that has a `jacobian` of its own is not differentiated: the first time PyTorch does that it imports its compiler,
    for three seconds that no time limit can cut.
    """

    dense = True

    def __init__(self, residual: Callable[[Tensor], Tensor], at: Tensor, fixed: Tensor | None = None) -> None:
        self.function, self.at, self.fixed = residual, at, fixed
        self.residual = residual(at)
        self.cost = float(self.residual.square().sum())

    @cached_property
    def jacobian(self) -> Tensor:
        own = getattr(self.function, "jacobian", None)
        J: Tensor = torch.func.jacfwd(self.function)(self.at) if own is None else own(self.at)
        return J if self.fixed is None else J.masked_fill(self.fixed, 0.0)

    @cached_property
    def normal_matrix(self) -> Tensor:
        return self.jacobian.T @ self.jacobian

    @cached_property
    def gradient(self) -> Tensor:
        return self.jacobian.T @ self.residual

    def step(self, damping: float) -> Tensor:
        return dense_step(self.normal_matrix, self.gradient, damping)

    def push(self, step: Tensor) -> Tensor:
        return self.jacobian @ step

    def moved(self, step: Tensor) -> Dense:
        return Dense(self.function, self.at + step, self.fixed)


def dense_step(N: Tensor, g: Tensor, damping: float) -> Tensor:
    """−(N + damping·diag N)⁻¹ g; the damping grows until the matrix is positive definite."""
    diagonal = N.diagonal().clamp_min(N.diagonal().max() * 1e-30)
    for _ in range(60):
        factor, failed = torch.linalg.cholesky_ex(N + torch.diag(diagonal * damping))
        if not bool(failed):
            return -torch.cholesky_solve(g[:, None], factor)[:, 0]
        damping = damping * 10
    return torch.zeros_like(g)


def can_be_dense(unknowns: int, C: int) -> bool:
    """Whether the normal matrix of this many unknowns can be formed and factored in a fraction of a second."""
    return _dense_work(unknowns, C) < _AFFORDABLE


def seconds_per_iteration(unknowns: int, C: int) -> float:
    """What one iteration takes at worst on one core, roughly: small products cost their overhead, large ones their size."""
    iterative = 100 * (2e-4 + 8.0 * C * unknowns / 5e9)
    dense = 5e-4 + _dense_work(unknowns, C) / 1e10
    return min(dense, iterative) if unknowns > SMALL else dense


def _dense_work(unknowns: int, C: int) -> float:
    return 2.0 * C * unknowns**2 + unknowns**3 / 3
