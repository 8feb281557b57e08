"""The one equation, α T̃ᵀ G(T K + b, Y) = Uᵀ, for every loss, with its residual, derivatives and normal matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from unsum.equation.conjugate import NormalSystem
from unsum.equation.levenberg import SMALL, can_be_dense, dense_step, minimize
from unsum.losses import CrossEntropy, Loss, Softmax

_SMALLEST_FACTOR, _LARGEST_FACTOR = 1e-100, 1e100  # what can be squared and divided by


class NoFactorError(Exception):
    """A start whose factor α is no positive number: it leads nowhere, as other starts do."""


def positive_factor(alpha: float) -> float:
    """α itself, where a gradient can have been multiplied by it."""
    if not _SMALLEST_FACTOR < alpha < _LARGEST_FACTOR:
        raise NoFactorError(f"No gradient was multiplied by {alpha}.")
    return alpha


@dataclass(frozen=True)
class Unknowns:
    """A point in the space that is searched: F = T A, the floor e of every target, and the gradient's factor α."""

    T: Tensor  # (B, R)
    floor: Tensor  # (), ε/C under label smoothing, else 0
    log_alpha: Tensor  # (), α = scale / B for a mean over the batch, scale for a sum

    @classmethod
    def of(cls, T: Tensor, alpha: float, floor: float = 0.0) -> Unknowns:
        return cls(T, T.new_tensor(floor), T.new_tensor(math.log(alpha)))

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha.exp()

    @property
    def is_sound(self) -> bool:
        """Finite, with an α that can be divided by."""
        alpha = float(self.alpha)
        return (
            float(self.T.abs().max()) < 1e30
            and _SMALLEST_FACTOR < alpha < _LARGEST_FACTOR
            and abs(float(self.floor)) < 1e100
        )

    def moved(self, step: Tensor) -> Unknowns:
        """The point one step further; `step` holds T's entries, then floor, then log α."""
        B, R = self.T.shape
        return Unknowns(self.T + step[: B * R].view(B, R), self.floor + step[-2], self.log_alpha + step[-1])


@dataclass(frozen=True)
class Equation:
    """What is known about one head's gradient.

    U holds the gradient of W in the basis A and, as a last column, that of the bias times `beta` where there is one:
    a bias is a feature that is 1 for everybody, so T̃ = [T, beta·1]. Rows of weight 0 take no part: without `Y`
    those are the classes somebody may be labeled with, and every other target is the floor.
    """

    K: Tensor  # (R, C)
    b: Tensor  # (C,)
    U: Tensor  # (C, R) or (C, R + 1)
    weight: Tensor  # (C,)
    beta: float = 1.0
    Y: Tensor | None = None  # (B, C) targets before smoothing
    floor_free: bool = False
    alpha_free: bool = False
    loss: Loss = field(default_factory=CrossEntropy)

    @property
    def has_bias(self) -> bool:
        return self.U.shape[1] > self.K.shape[0]

    def with_rows(self, weight: Tensor) -> Equation:
        return replace(self, weight=weight)

    def extended(self, T: Tensor) -> Tensor:
        """T̃: T with the constant feature that the bias sees."""
        return torch.cat([T, T.new_full((len(T), 1), self.beta)], dim=1) if self.has_bias else T

    def logits(self, T: Tensor) -> Tensor:
        return T @ self.K + self.b

    @property
    def classes(self) -> int:
        """Of one head."""
        return len(self.b) // self.loss.heads

    def probabilities(self, T: Tensor) -> Tensor:
        logits = self.logits(T)
        return self.loss.probabilities(logits) if isinstance(self.loss, Softmax) else torch.softmax(logits, dim=1)

    def targets(self, at: Unknowns) -> Tensor:
        """(B, C) the targets that are assumed, smoothed by the floor; the floor alone where no label is assumed."""
        if self.Y is None:
            return at.floor.expand(len(at.T), len(self.b))
        return self.Y * (1 - self.classes * at.floor) + at.floor

    def residual(self, at: Unknowns) -> Tensor:
        """(C, R [+ 1]) weighted misfit of the gradient."""
        G = self.loss.gradient(self.logits(at.T), self.targets(at))
        return self.weight[:, None] * (at.alpha * G.T @ self.extended(at.T) - self.U)


class Linearized:
    """The equation at one point: residual r, products with its Jacobian J, JᵀJ, and damped steps for `minimize`."""

    def __init__(self, equation: Equation, at: Unknowns) -> None:
        self.equation, self.at = equation, at
        logits, Y = equation.logits(at.T), equation.targets(at)
        self.G = equation.loss.gradient(logits, Y)
        self.curvature = equation.loss.curvature(logits, Y)
        self.T = equation.extended(at.T)
        self.residual = equation.weight[:, None] * (at.alpha * self.G.T @ self.T - equation.U)
        self.cost = float(self.residual.square().sum())
        self.dense = at.T.numel() <= SMALL

    def floor_change(self) -> Tensor:
        """(B, C) of G per unit of the floor: it belongs to cross-entropy, whose G has targets as they are."""
        equation, C = self.equation, self.equation.classes
        return -torch.ones_like(self.G) if equation.Y is None else C * equation.Y - 1

    def sent(self, change: Tensor) -> Tensor:
        """(C, R [+ 1]) what the residual changes by where G (B, C) changes."""
        return self.equation.weight[:, None] * (self.at.alpha * change.T @ self.T)

    def floor_derivative(self) -> Tensor:
        """Of the residual."""
        return self.sent(self.floor_change())

    def alpha_derivative(self) -> Tensor:
        return self.sent(self.G)

    def _scalar_derivatives(self) -> tuple[Tensor | None, Tensor | None]:
        """By floor and by log α; None for one that is not free."""
        floor = self.floor_derivative() if self.equation.floor_free else None
        return floor, self.alpha_derivative() if self.equation.alpha_free else None

    def pull(self, V: Tensor) -> Tensor:
        """Jᵀ V for V of the residual's shape."""
        equation, at = self.equation, self.at
        R = equation.K.shape[0]
        weighted = equation.weight[:, None] * V
        Z = self.curvature.times(self.T @ weighted.T)
        dT = at.alpha * (self.G @ weighted[:, :R] + Z @ equation.K.T)
        scalars = [V.new_zeros(()) if D is None else (D * V).sum() for D in self._scalar_derivatives()]
        return torch.cat([dT.flatten(), torch.stack(scalars)])

    def pull_each(self, V: Tensor, rows: Tensor | None = None) -> Tensor:
        """(m, …) Jᵀ of each of V (m, C, R [+ 1]): one product for all of them. V (m, n, …) holds n `rows`, the others are 0."""
        equation, at = self.equation, self.at
        R, kept = equation.K.shape[0], slice(None) if rows is None else rows
        weighted = equation.weight[kept, None] * V
        Z = (self.T @ weighted.mT).transpose(0, 1)  # (B, m, n)
        if rows is None:
            Z = self.curvature.times(Z) @ equation.K.T
        else:
            chosen = torch.nn.functional.one_hot(rows, len(equation.b)).to(V).expand(len(self.T), -1, -1)
            Z = Z @ (self.curvature.times(chosen) @ equation.K.T)
        dT = at.alpha * (self.G[:, kept] @ weighted[..., :R] + Z.transpose(0, 1))
        free = [None if D is None else D[kept] for D in self._scalar_derivatives()]
        scalars = [V.new_zeros(len(V)) if D is None else (D * V).sum((1, 2)) for D in free]
        return torch.cat([dT.flatten(1), torch.stack(scalars, dim=1)], dim=1)

    def push(self, step: Tensor) -> Tensor:
        """J step, of the residual's shape."""
        equation, at = self.equation, self.at
        B, R = at.T.shape
        D = step[: B * R].view(B, R)
        change = self.curvature.times(D @ equation.K).T @ self.T
        change[:, :R] += self.G.T @ D
        change = equation.weight[:, None] * (at.alpha * change)
        for size, derivative in zip(step[-2:], self._scalar_derivatives(), strict=True):
            change = change if derivative is None else change + size * derivative
        return change

    def push_each(self, steps: Tensor) -> Tensor:
        """(m, C, R [+ 1]) J of each of m steps."""
        equation, at = self.equation, self.at
        B, R = at.T.shape
        D = steps[:, : B * R].view(-1, B, R)
        change = self.curvature.times((D @ equation.K).transpose(0, 1)).permute(1, 2, 0) @ self.T
        change[..., :R] += self.G.T @ D
        change = equation.weight[:, None] * (at.alpha * change)
        for sizes, derivative in zip(steps[:, -2:].T, self._scalar_derivatives(), strict=True):
            change = change if derivative is None else change + sizes[:, None, None] * derivative
        return change

    @cached_property
    def gradient(self) -> Tensor:
        return self.pull(self.residual)

    def normal_diagonal(self) -> Tensor:
        """The diagonal of JᵀJ; 1 for scalars that are not free."""
        equation, at = self.equation, self.at
        squared = equation.weight.square()
        own, cross = self.curvature.squares(equation.K, self.G, squared)
        T_part = self.T.square().sum(1, keepdim=True) * own + 2 * at.T * cross
        T_part = T_part + (self.G.square() @ squared)[:, None]
        scalars = [T_part.new_ones(()) if D is None else D.square().sum() for D in self._scalar_derivatives()]
        return torch.cat([(at.alpha.square() * T_part).flatten(), torch.stack(scalars)])

    @cached_property
    def normal_matrix(self) -> Tensor:
        """JᵀJ, (B·R + 2)², from its structure: C·(B R)² operations where J itself would need R times as many."""
        equation, at = self.equation, self.at
        B, R = at.T.shape
        squared = equation.weight.square()
        Q = self.curvature.along(equation.K)  # (B, R, C)
        Qw = Q * squared
        N = (Qw.reshape(B * R, -1) @ Q.reshape(B * R, -1).T).view(B, R, B, R)
        N = N * (self.T @ self.T.T)[:, None, :, None]
        cross = torch.einsum("ic,jlc->ijl", self.G, Qw)  # (i; j, l)
        cross = torch.einsum("jk,ijl->ikjl", at.T, cross)
        N = N + cross + cross.permute(2, 3, 0, 1)
        N.diagonal(dim1=1, dim2=3).add_(((self.G * squared) @ self.G.T)[:, :, None])
        full = N.new_zeros(B * R + 2, B * R + 2)
        full[:-2, :-2] = at.alpha.square() * N.reshape(B * R, B * R)
        for index, derivative in zip((-2, -1), self._scalar_derivatives(), strict=True):
            if derivative is None:
                full[index, index] = 1.0
            else:
                column = self.pull(derivative)
                full[index], full[:, index] = column, column
        return full

    def coupling(self) -> Tensor:
        """(B, B) the term of JᵀJ that couples the samples, the same for every direction of T."""
        weighted = self.G * self.equation.weight
        return self.at.alpha.square() * (weighted @ weighted.T)

    def step(self, damping: float) -> Tensor:
        """Dense where that is small, or where conjugate gradients do not converge and it can be afforded."""
        if not self.dense:
            system = NormalSystem.of(self, damping * self.normal_diagonal(), damping)
            found, converged = system.solve(-self.gradient, tolerance=0.1, iterations=100)
            if converged or not can_be_dense(self.at.T, len(self.equation.b)):
                return found
            self.dense = True
        return dense_step(self.normal_matrix, self.gradient, damping)

    def moved(self, step: Tensor) -> Linearized:
        there = Linearized(self.equation, self.at.moved(step))
        there.dense = self.dense
        return there


def solve(equation: Equation, start: Unknowns, iterations: int = 100, *, in_noise_units: bool = False) -> Linearized:
    """Minimize ‖residual‖² from `start`, until it stagnates or for `iterations`; where that ends.

    Where the residual comes in units of its noise, what is below that noise need not be pursued further.
    """
    here = Linearized(equation, start)
    return minimize(here, iterations, enough=here.residual.numel() if in_noise_units else 0.0)
