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
    def push(self, steps: Tensor) -> Tensor: ...
    def coupling(self) -> Tensor: ...
    @property
    def normal_diagonal(self) -> Tensor: ...
    @property
    def entries(self) -> int: ...


@dataclass(frozen=True)
class NormalSystem:
    """(JᵀJ + diag) x = right sides (…, m, k) at a point, or at many, with a preconditioner.

    The term of JᵀJ that couples the samples is (α² G W² Gᵀ) ⊗ 1, the same for every direction of T:
    its B×B inverse, applied from the left, is the preconditioner. Scalars are scaled by their own
    diagonal.
    """

    here: Linear
    diagonal: Tensor  # (…, k) added to JᵀJ
    left: Tensor  # (…, B, B)
    scalars: Tensor  # (…, n)

    @classmethod
    def of(cls, here: Linear, diagonal: Tensor, damping: Tensor | float) -> NormalSystem:
        """`damping` is what `diagonal` amounts to in parts of JᵀJ's own, of all points or of
        each."""
        scalars = 1 / here.normal_diagonal[..., here.entries :]
        return cls(here, diagonal, _ridge_inverse(here.coupling(), damping), scalars)

    def matvec(self, x: Tensor) -> Tensor:
        return self.here.pull(self.here.push(x)) + self.diagonal[..., None, :] * x

    def precondition(self, x: Tensor) -> Tensor:
        n = self.scalars.shape[-1]
        T = self.left[..., None, :, :] @ x[..., :-n].unflatten(-1, (self.left.shape[-1], -1))
        return torch.cat([T.flatten(-2), self.scalars[..., None, :] * x[..., -n:]], dim=-1)

    def solve(self, right: Tensor, tolerance: float, iterations: int) -> tuple[Tensor, bool]:
        """x, and whether all preconditioned residuals fell below `tolerance` of where they
        began."""
        return conjugate_gradients(self.matvec, self.precondition, right, tolerance, iterations)


def _ridge_inverse(matrix: Tensor, ridge: Tensor | float) -> Tensor:
    """(…, B, B) (matrix + ridge · its diagonal)⁻¹, with as much ridge as positive definiteness
    takes."""
    scale = matrix.diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
    scaled = scale[..., :, None] * matrix * scale[..., None, :]
    added = torch.as_tensor(ridge, dtype=matrix.dtype, device=matrix.device).clamp_min(1e-13)
    added = added.expand(matrix.shape[:-2])
    one = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(16):
        factor, failed = torch.linalg.cholesky_ex(scaled + added[..., None, None] * one)
        if not bool(failed.any()):
            return scale[..., :, None] * torch.cholesky_inverse(factor) * scale[..., None, :]
        added = torch.where(failed > 0, 10 * added, added)
    return torch.diag_embed(scale.square())
