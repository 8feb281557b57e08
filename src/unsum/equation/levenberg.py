"""How large a normal matrix may be to be formed, and any residual by its whole Jacobian
(`Dense`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

SMALL = 300  # unknowns up to which the normal matrix is formed at once
# floating-point operations up to which it is formed where conjugate gradients give up
_AFFORDABLE = 1e9


class Dense:
    """Any residual of a vector of unknowns, by its whole Jacobian; unknowns that are `fixed` stay
    where they are."""

    def __init__(
        self, residual: Callable[[Tensor], Tensor], at: Tensor, fixed: Tensor | None = None
    ) -> None:
        self.function, self.at, self.fixed = residual, at, fixed
        self.residual = residual(at)
        self.cost = self.residual.square().sum()

    @cached_property
    def jacobian(self) -> Tensor:
        J: Tensor = torch.func.jacfwd(self.function)(self.at)
        return J if self.fixed is None else J.masked_fill(self.fixed, 0.0)

    @cached_property
    def normal_matrix(self) -> Tensor:
        return self.jacobian.T @ self.jacobian

    @cached_property
    def gradient(self) -> Tensor:
        return self.jacobian.T @ self.residual


def can_be_dense(unknowns: int, C: int) -> bool:
    """Whether the normal matrix of this many unknowns can be formed and factored in a fraction of a
    second."""
    return _dense_work(unknowns, C) < _AFFORDABLE


def seconds_per_iteration(unknowns: int, C: int) -> float:
    """What one iteration takes at worst on one core, roughly: small products cost their overhead,
    large ones their size."""
    iterative = 100 * (2e-4 + 8.0 * C * unknowns / 5e9)
    dense = 5e-4 + _dense_work(unknowns, C) / 1e10
    return min(dense, iterative) if unknowns > SMALL else dense


def _dense_work(unknowns: int, C: int) -> float:
    return 2.0 * C * unknowns**2 + unknowns**3 / 3
