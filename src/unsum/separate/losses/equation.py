"""α T̃ᵀ G(T K + b, Y) = Uᵀ for any declared loss: residual, normal matrix, and Levenberg–Marquardt on T (and α if free)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.separate.losses.loss import Loss, Separable


@dataclass(frozen=True)
class LossEquation:
    """What is known: U (C, R [+ 1]) in the basis A, K = A Wᵀ (R, C), b (C,), row weights, and the targets that are assumed."""

    loss: Loss
    K: Tensor
    b: Tensor
    U: Tensor
    weight: Tensor
    beta: float
    Y: Tensor
    alpha_free: bool = False

    def extended(self, T: Tensor) -> Tensor:
        """T with the constant feature that the bias sees, where its gradient is known."""
        if self.U.shape[1] == self.K.shape[0]:
            return T
        return torch.cat([T, T.new_full((len(T), 1), self.beta)], dim=1)

    def residual(self, T: Tensor, log_alpha: Tensor) -> Tensor:
        """(C, R [+ 1]) weighted misfit of the gradient."""
        G = self.loss.gradient(T @ self.K + self.b, self.Y)
        misfit: Tensor = self.weight[:, None] * (log_alpha.exp() * G.T @ self.extended(T) - self.U)
        return misfit

    def read_targets(self, T: Tensor, log_alpha: Tensor) -> Tensor:
        """(B, C) the targets that a separable loss leaves at T, before they are rounded."""
        assert isinstance(self.loss, Separable)
        G = torch.linalg.lstsq(self.extended(T).T, self.U.T / log_alpha.exp()).solution
        found: Tensor = self.loss.link(T @ self.K + self.b) - G
        return found

    def normal(self, T: Tensor, log_alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """JᵀJ and Jᵀr over T's entries and log α, and the cost."""
        B, R = T.shape
        L = T @ self.K + self.b
        G, Q = self.loss.gradient(L, self.Y), self._curvature(L)
        extended, alpha = self.extended(T), log_alpha.exp()
        r = self.weight[:, None] * (alpha * G.T @ extended - self.U)
        squared = self.weight.square()
        Qw = Q * squared
        N = (Qw.reshape(B * R, -1) @ Q.reshape(B * R, -1).T).view(B, R, B, R)
        N = N * (extended @ extended.T)[:, None, :, None]
        cross = torch.einsum("jk,ijl->ikjl", T, torch.einsum("ic,jlc->ijl", G, Qw))
        N = N + cross + cross.permute(2, 3, 0, 1)
        N.diagonal(dim1=1, dim2=3).add_(((G * squared) @ G.T)[:, :, None])
        full = N.new_zeros(B * R + 1, B * R + 1)
        full[:-1, :-1] = alpha.square() * N.reshape(B * R, B * R)
        gradient = torch.cat([self._pull(r, G, Q, extended, alpha), r.new_zeros(1)])
        full[-1, -1] = 1.0
        if self.alpha_free:
            change = self.weight[:, None] * (alpha * G.T @ extended)
            column = self._pull(change, G, Q, extended, alpha)
            full[-1, :-1], full[:-1, -1], full[-1, -1] = column, column, change.square().sum()
            gradient[-1] = (change * r).sum()
        return full, gradient, r.square().sum()

    def _pull(self, V: Tensor, G: Tensor, Q: Tensor, extended: Tensor, alpha: Tensor) -> Tensor:
        weighted = self.weight[:, None] * V
        R = self.K.shape[0]
        pulled: Tensor = alpha * (torch.einsum("ikc,ic->ik", Q, extended @ weighted.T) + G @ weighted[:, :R])
        return pulled.flatten()

    def _curvature(self, L: Tensor) -> Tensor:
        """(B, R, C) how G changes along each direction of T: the Hessian of every sample's loss times K."""
        if isinstance(self.loss, Separable):
            return self.loss.slope(L)[:, None, :] * self.K
        pull = torch.func.vjp(lambda logits: self.loss.gradient(logits, self.Y), L)[1]  # a Hessian: symmetric
        curvature: Tensor = torch.func.vmap(lambda k: pull(k.expand_as(L))[0])(self.K).transpose(0, 1)
        return curvature


@dataclass(frozen=True)
class Solved:
    """Where the solver stopped, with the normal matrix there."""

    T: Tensor
    log_alpha: Tensor
    cost: float
    N: Tensor
    equation: LossEquation


def solve(equation: LossEquation, T: Tensor, log_alpha: Tensor, iterations: int = 60) -> Solved:
    """Levenberg–Marquardt with Marquardt's scaling, until the cost stagnates."""
    N, g, cost = equation.normal(T, log_alpha)
    damping, stalled = 1e-3, 0
    for _ in range(iterations):
        step = _step(N, g, damping)
        trial = T + step[:-1].view_as(T)
        trial_alpha = log_alpha + step[-1] if equation.alpha_free else log_alpha
        new_N, new_g, new_cost = equation.normal(trial, trial_alpha)
        if not bool(new_cost < cost):
            damping *= 5
            if damping > 1e10:
                break
            continue
        stalled = stalled + 1 if bool(new_cost > 0.999 * cost) else 0
        T, log_alpha, N, g, cost = trial, trial_alpha, new_N, new_g, new_cost
        damping = max(damping / 5, 1e-14)
        if stalled >= 3:
            break
    return Solved(T, log_alpha, float(cost), N, replace(equation))


def _step(N: Tensor, g: Tensor, damping: float) -> Tensor:
    diagonal = N.diagonal().clamp_min(N.diagonal().max() * 1e-30)
    for _ in range(40):
        factor, failed = torch.linalg.cholesky_ex(N + torch.diag(diagonal * damping))
        if not bool(failed):
            return -torch.cholesky_solve(g[:, None], factor)[:, 0]
        damping *= 10
    return torch.zeros_like(g)
