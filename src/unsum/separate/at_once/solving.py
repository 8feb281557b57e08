"""The equation α T̃ᵀ (P − Y) = Uᵀ of many batches with hard labels, and Levenberg–Marquardt for all of them at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.equation.levenberg import FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING, NOTHING, PATIENCE, STALLED


@dataclass(frozen=True)
class ManyEquations:
    """As `Equation` is one of them, with targets that are known, a plain scale and a bias."""

    K: Tensor  # (n, R, C)
    b: Tensor  # (C,)
    U: Tensor  # (n, C, R + 1) its last column is ∇b times beta
    weight: Tensor  # (n, C)
    beta: Tensor  # (n,)
    Y: Tensor  # (n, B, C)

    @property
    def alpha(self) -> float:
        return 1 / self.Y.shape[1]

    def take(self, kept: Tensor) -> ManyEquations:
        return ManyEquations(self.K[kept], self.b, self.U[kept], self.weight[kept], self.beta[kept], self.Y[kept])

    def with_rows(self, weight: Tensor) -> ManyEquations:
        return replace(self, weight=weight)


class Points:
    """The equations at a point each: residuals (n, C, R + 1), costs (n,), and what derivatives are made of."""

    def __init__(self, equations: ManyEquations, T: Tensor) -> None:
        self.equations, self.T = equations, T
        self.P = torch.softmax(T @ equations.K + equations.b, dim=2)
        self.G = self.P - equations.Y
        self.extended = torch.cat([T, equations.beta[:, None, None].expand(-1, T.shape[1], 1)], dim=2)
        sent = equations.alpha * self.G.mT @ self.extended
        self.residual = equations.weight[:, :, None] * (sent - equations.U)
        self.costs = self.residual.square().sum((1, 2))

    def pull(self, V: Tensor) -> Tensor:
        """(n, m, B·R) Jᵀ V for m of the residual's shape each: V (n, m, C, R + 1)."""
        equations, P = self.equations, self.P[:, None]
        R = self.T.shape[2]
        weighted = equations.weight[:, None, :, None] * V
        Z = self.extended[:, None] @ weighted.mT
        Z = P * (Z - (P * Z).sum(3, keepdim=True))
        pulled = self.G[:, None] @ weighted[..., :R] + Z @ equations.K[:, None].mT
        return equations.alpha * pulled.flatten(2)

    def gradient(self) -> Tensor:
        return self.pull(self.residual[:, None])[:, 0]

    def normal_matrix(self) -> Tensor:
        """(n, B·R, B·R) JᵀJ."""
        equations = self.equations
        n, B, R = self.T.shape
        squared, K = equations.weight.square(), equations.K[:, None]
        P = self.P[:, :, None]
        Q = P * (K - (P * K).sum(3, keepdim=True))  # (n, B, R, C)
        Qw = Q * squared[:, None, None]
        N = (Qw.flatten(1, 2) @ Q.flatten(1, 2).mT).view(n, B, R, B, R)
        N = N * (self.extended @ self.extended.mT)[:, :, None, :, None]
        cross = (self.G @ Qw.flatten(1, 2).mT).view(n, B, B, R)  # (i; j, l)
        cross = self.T.mT[:, None, :, :, None] * cross[:, :, None]  # (i, k; j, l)
        N = N + cross + cross.permute(0, 3, 4, 1, 2)
        N.diagonal(dim1=2, dim2=4).add_(((self.G * squared[:, None]) @ self.G.mT)[..., None])
        return equations.alpha**2 * N.reshape(n, B * R, B * R)


def solve_at_once(equations: ManyEquations, T: Tensor, iterations: int) -> Tensor:
    """(n, B, R) where each of them stagnates, or is below its noise and hardly falls, as `levenberg.minimize` does it."""
    T, live = T.clone(), torch.arange(len(T), device=T.device)
    damping, growth, stalled = T.new_full((len(T),), FIRST_DAMPING), T.new_full((len(T),), 2.0), T.new_zeros(len(T))
    enough = equations.U[0].numel()
    here = Points(equations, T)
    for _ in range(iterations):
        if len(live) == 0:
            break
        N, g, mu = here.normal_matrix(), here.gradient(), damping[live]
        step, failed = _damped(N, g, mu)
        there = Points(here.equations, here.T + step.view_as(here.T))
        promised = -(2 * (step * g).sum(1) + ((N @ step[:, :, None])[:, :, 0] * step).sum(1))
        gain = torch.where((promised > 0) & ~failed, (here.costs - there.costs) / promised, -1.0)
        better = gain > 0
        stall = torch.where(there.costs > STALLED * here.costs, stalled[live] + 1, 0.0)
        settled = (0.9 * here.costs < there.costs) & (there.costs < enough)
        lost = (mu * growth[live] > MOST_DAMPING) | ((promised < NOTHING * here.costs) & ~failed)
        over = torch.where(better, settled | (stall >= PATIENCE), lost)
        shrunk = (mu * (1 - (2 * gain - 1) ** 3).clamp_min(1 / 3)).clamp_min(LEAST_DAMPING)
        damping[live] = torch.where(better, shrunk, mu * growth[live])
        growth[live] = torch.where(better, 2.0, growth[live] * 2)
        stalled[live] = torch.where(better, stall, stalled[live])
        moved = torch.where(better[:, None, None], there.T, here.T)
        T[live] = moved
        live, kept = live[~over], ~over
        here = Points(here.equations.take(kept), moved[kept])
    return T


def _damped(N: Tensor, g: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
    """−(N + damping·diag N)⁻¹ g, and where that is no positive definite matrix."""
    diagonal = N.diagonal(dim1=1, dim2=2)
    diagonal = torch.maximum(diagonal, 1e-30 * diagonal.amax(1, keepdim=True))
    factor, failed = torch.linalg.cholesky_ex(N + torch.diag_embed(diagonal * damping[:, None]))
    step = solve_factored(factor, -g[:, :, None])[:, :, 0]
    bad = (failed > 0) | ~step.isfinite().all(1)
    return torch.where(bad[:, None], 0.0, step), bad


def solve_factored(factor: Tensor, right: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ right."""
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solved
