"""The damped normal equations, solved by conjugate gradients without forming their matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unsum.engine.conjugate import conjugate_gradients


class Linear(Protocol):
    """A linearized equation: products with its Jacobian, and what a preconditioner is made of."""

    def pull(self, V: Tensor) -> Tensor: ...
    def pull_each(self, V: Tensor) -> Tensor: ...
    def push(self, step: Tensor) -> Tensor: ...
    def push_each(self, steps: Tensor) -> Tensor: ...
    def coupling(self) -> Tensor: ...
    def normal_diagonal(self) -> Tensor: ...


@dataclass(frozen=True)
class NormalSystem:
    """(JᵀJ + diag) x = right side at one point, with a preconditioner.

    The term of JᵀJ that couples the samples is (α² G W² Gᵀ) ⊗ 1, the same for every direction of T: its B×B inverse,
    applied from the left, is the preconditioner. The two scalars are scaled by their own diagonal.
    """

    here: Linear
    diagonal: Tensor  # (B·R + 2,) added to JᵀJ
    left: Tensor  # (B, B)
    scalars: Tensor  # (2,)

    @classmethod
    def of(cls, here: Linear, diagonal: Tensor, damping: float) -> NormalSystem:
        return cls(here, diagonal, _ridge_inverse(here.coupling(), damping), 1 / here.normal_diagonal()[-2:])

    def matvec(self, x: Tensor) -> Tensor:
        here = self.here
        seen = here.pull(here.push(x)) if x.ndim == 1 else here.pull_each(here.push_each(x))
        return seen + self.diagonal * x

    def precondition(self, x: Tensor) -> Tensor:
        T = self.left @ x[..., :-2].unflatten(-1, (len(self.left), -1))
        return torch.cat([T.flatten(-2), self.scalars * x[..., -2:]], dim=-1)

    def solve(self, right: Tensor, tolerance: float, iterations: int) -> tuple[Tensor, bool]:
        """x, and whether the preconditioned residual fell below `tolerance` of where it began; of one right side, or of rows."""
        return conjugate_gradients(self.matvec, self.precondition, right, tolerance, iterations)


def _ridge_inverse(matrix: Tensor, ridge: float) -> Tensor:
    """(matrix + ridge · its diagonal)⁻¹, with as much ridge as positive definiteness takes."""
    scale = matrix.diagonal().clamp_min(1e-300).rsqrt()
    scaled, one = scale[:, None] * matrix * scale, torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for _ in range(16):
        factor, failed = torch.linalg.cholesky_ex(scaled + max(ridge, 1e-13) * one)
        if not bool(failed):
            return scale[:, None] * torch.cholesky_inverse(factor) * scale
        ridge = 10 * max(ridge, 1e-13)
    return torch.diag(scale.square())
