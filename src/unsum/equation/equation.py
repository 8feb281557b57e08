"""The one equation, α T̃ᵀ G(T K + b, Y) = Uᵀ, for every loss, with its residual, derivatives and
normal matrix.

One gradient at one point, one at many, and many gradients at a point each are the same code:
dimensions in front.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.descend import NonlinearProblem, Normal, StoppingRule, descend
from unsum.equation.conjugate import NormalSystem
from unsum.equation.levenberg import SMALL, can_be_dense
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
    """A point in the space that is searched: F = T A, the floor e of every target, and the
    gradient's factor α.

    Any number of points may stand in front of these dimensions.
    """

    T: Tensor  # (…, B, R)
    floor: Tensor  # (…), ε/C under label smoothing, else 0
    log_alpha: Tensor  # (…, 1) or, where every sample has a weight of its own, (…, B)

    @classmethod
    def of(cls, T: Tensor, alpha: float, floor: float = 0.0) -> Unknowns:
        """Points at one factor: scale / B for a mean over the batch, scale for a sum."""
        ones = T.new_ones(T.shape[:-2])
        return cls(T, floor * ones, math.log(alpha) * ones[..., None])

    @classmethod
    def of_vector(cls, s: Tensor, B: int, R: int) -> Unknowns:
        """From (…, B·R + 1 + 1 or B): T's entries, then the floor, then log α."""
        return cls(s[..., : B * R].unflatten(-1, (B, R)), s[..., B * R], s[..., B * R + 1 :])

    @property
    def vector(self) -> Tensor:
        return torch.cat([self.T.flatten(-2), self.floor[..., None], self.log_alpha], dim=-1)

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha.exp()

    @property
    def is_sound(self) -> bool:
        """Finite, with factors that can be divided by."""
        alpha = self.alpha
        return (
            float(self.T.abs().max()) < 1e30
            and bool(((alpha > _SMALLEST_FACTOR) & (alpha < _LARGEST_FACTOR)).all())
            and float(self.floor.abs().max()) < 1e100
        )


@dataclass(frozen=True)
class Equation:
    """What is known about one head's gradient, or about many: any number of them may stand in front
    of the dimensions.

    U holds the gradient of W in the basis A and, as a last column, that of the bias times `beta`
    where there is one: a bias is a feature that is 1 for everybody, so T̃ = [T, beta·1]. Rows of
    weight 0 take no part: without `Y` those are the classes somebody may be labeled with, and every
    other target is the floor.
    """

    K: Tensor  # (…, R, C)
    b: Tensor  # (C,)
    U: Tensor  # (…, C, R) or (…, C, R + 1)
    weight: Tensor  # (…, C)
    beta: float | Tensor = 1.0  # or (…)
    Y: Tensor | None = None  # (…, B, C) targets before smoothing
    floor_free: bool = False
    alpha_free: bool = False
    loss: Loss = field(default_factory=CrossEntropy)

    @property
    def has_bias(self) -> bool:
        return self.U.shape[-1] > self.K.shape[-2]

    def with_rows(self, weight: Tensor) -> Equation:
        return replace(self, weight=weight)

    def take(self, rows: Tensor) -> Equation:
        """Some of many equations; itself, where it is one."""
        if self.K.ndim == 2:
            return self
        beta = self.beta[rows] if isinstance(self.beta, Tensor) else self.beta
        Y = None if self.Y is None else self.Y[rows]
        K, U, weight = self.K[rows], self.U[rows], self.weight[rows]
        return replace(self, K=K, U=U, weight=weight, beta=beta, Y=Y)

    def extended(self, T: Tensor) -> Tensor:
        """T̃: T with the constant feature that the bias sees."""
        if not self.has_bias:
            return T
        beta = torch.as_tensor(self.beta, dtype=T.dtype, device=T.device)
        return torch.cat([T, beta[..., None, None].expand(*T.shape[:-1], 1)], dim=-1)

    def logits(self, T: Tensor) -> Tensor:
        return T @ self.K + self.b

    @property
    def classes(self) -> int:
        """Of one head."""
        return len(self.b) // self.loss.heads

    def probabilities(self, T: Tensor) -> Tensor:
        logits = self.logits(T)
        return (
            self.loss.probabilities(logits)
            if isinstance(self.loss, Softmax)
            else torch.softmax(logits, dim=-1)
        )

    def targets(self, at: Unknowns) -> Tensor:
        """(…, B, C) the targets that are assumed, smoothed by the floor; the floor alone where no
        label is assumed."""
        floor = at.floor[..., None, None]
        if self.Y is None:
            return floor.expand(*at.T.shape[:-1], len(self.b))
        return self.Y * (1 - self.classes * floor) + floor

    def residual(self, at: Unknowns) -> Tensor:
        """(…, C, R [+ 1]) weighted misfit of the gradient."""
        G = at.alpha[..., None] * self.loss.gradient(self.logits(at.T), self.targets(at))
        return self.weight[..., None] * (G.mT @ self.extended(at.T) - self.U)

    def cost(self, at: Unknowns) -> Tensor:
        """(…) ‖residual‖²."""
        return self.residual(at).square().sum((-2, -1))


class Linearized:
    """The equation at points: residual r (…, C, R [+ 1]), products with its Jacobian J, JᵀJ, and
    damped steps.

    Steps hold T's entries, then the floor, then log α, as `Unknowns.vector` does.
    """

    def __init__(self, equation: Equation, at: Unknowns) -> None:
        self.equation, self.at = equation, at
        logits, Y = equation.logits(at.T), equation.targets(at)
        self.G = equation.loss.gradient(logits, Y)
        self.curvature = equation.loss.curvature(logits, Y)
        self.T = equation.extended(at.T)
        self.residual = self.sent(self.G) - equation.weight[..., None] * equation.U
        self.cost = self.residual.square().sum((-2, -1))

    def sent(self, change: Tensor) -> Tensor:
        """(…, C, R [+ 1]) what the residual changes by where G (…, B, C) changes."""
        return self.equation.weight[..., None] * ((self.at.alpha[..., None] * change).mT @ self.T)

    def sent_each(self, change: Tensor) -> Tensor:
        """(…, B, C, R [+ 1]) the share of each sample in it."""
        weighted = self.at.alpha[..., None] * change * self.equation.weight[..., None, :]
        return weighted[..., None] * self.T[..., None, :]

    def floor_change(self) -> Tensor:
        """(…, B, C) of G per unit of the floor: it belongs to cross-entropy, whose G has targets as
        they are."""
        equation, C = self.equation, self.equation.classes
        return (
            -torch.ones_like(self.G)
            if equation.Y is None
            else (C * equation.Y - 1).expand_as(self.G)
        )

    def floor_derivative(self) -> Tensor:
        """Of the residual."""
        return self.sent(self.floor_change())

    def alpha_derivative(self) -> Tensor:
        """(…, 1 or B, C, R [+ 1]) by log α."""
        one = self.at.log_alpha.shape[-1] == 1
        return self.sent(self.G).unsqueeze(-3) if one else self.sent_each(self.G)

    @cached_property
    def _scalars(self) -> list[tuple[int, Tensor]]:
        """Derivatives (…, n, C, R [+ 1]) by the floor and by log α, where they are free, with their
        place from the end."""
        factors, free = self.at.log_alpha.shape[-1], []
        if self.equation.floor_free:
            free.append((-1 - factors, self.floor_derivative().unsqueeze(-3)))
        if self.equation.alpha_free:
            free.append((-factors, self.alpha_derivative()))
        return free

    @property
    def entries(self) -> int:
        """Of T: a step has so many, and then the scalars."""
        return self.at.T.shape[-2:].numel()

    def pull(self, V: Tensor) -> Tensor:
        """(…, m, k) Jᵀ of each of V (…, m, C, R [+ 1]): one product for all of them."""
        equation, alpha = self.equation, self.at.alpha[..., None]
        B, R = self.at.T.shape[-2:]
        m = V.shape[-3]
        weighted = equation.weight[..., None, :, None] * V
        Z = self.T @ weighted.flatten(-3, -2).mT  # (…, B, m·C)
        Z = alpha[..., None] * self.curvature.times(Z.unflatten(-1, (m, -1)))
        dT = (Z.flatten(-3, -2) @ equation.K.mT).unflatten(-2, (B, m)).transpose(-3, -2)
        dT = dT + (alpha * self.G).unsqueeze(-3) @ weighted[..., :R]
        along = dT.new_zeros(*dT.shape[:-2], 1 + self.at.log_alpha.shape[-1])
        for place, D in self._scalars:
            along[..., place : place + D.shape[-3] or None] = V.flatten(-2) @ D.flatten(-2).mT
        return torch.cat([dT.flatten(-2), along], dim=-1)

    def push(self, steps: Tensor) -> Tensor:
        """(…, m, C, R [+ 1]) J of each of m steps (…, m, k)."""
        equation, alpha = self.equation, self.at.alpha[..., None]
        B, R = self.at.T.shape[-2:]
        m = steps.shape[-2]
        D = steps[..., : B * R].unflatten(-1, (B, R))  # (…, m, B, R)
        Z = D.transpose(-3, -2).flatten(-3, -2) @ equation.K
        Z = alpha[..., None] * self.curvature.times(Z.unflatten(-2, (B, m)))  # (…, B, m, C)
        change = (Z.flatten(-2).mT @ self.T).unflatten(-2, (m, -1))
        change[..., :R] += (alpha * self.G).mT.unsqueeze(-3) @ D
        change = equation.weight[..., None, :, None] * change
        for place, derivative in self._scalars:
            n = derivative.shape[-3]
            sizes = steps[..., place : place + n or None]
            change = change + (sizes @ derivative.flatten(-2)).unflatten(-1, change.shape[-2:])
        return change

    @cached_property
    def gradient(self) -> Tensor:
        """(…, k) Jᵀr."""
        return self.pull(self.residual.unsqueeze(-3)).squeeze(-2)

    @cached_property
    def normal_diagonal(self) -> Tensor:
        """(…, k) the diagonal of JᵀJ; 1 for scalars that are not free."""
        equation, alpha = self.equation, self.at.alpha[..., None]
        squared = equation.weight.square()
        own, cross = self.curvature.squares(equation.K, self.G, squared)
        T_part = self.T.square().sum(-1, keepdim=True) * own + 2 * self.at.T * cross
        T_part = T_part + (self.G.square() @ squared[..., None])
        diagonal = torch.ones_like(self.at.vector)
        diagonal[..., : self.entries] = (alpha.square() * T_part).flatten(-2)
        for place, D in self._scalars:
            diagonal[..., place : place + D.shape[-3] or None] = D.square().sum((-2, -1))
        return diagonal

    @cached_property
    def normal_matrix(self) -> Tensor:
        """(…, k, k) JᵀJ, from its structure: C·(B R)² operations where J itself would need R times
        as many."""
        equation, at = self.equation, self.at
        B, R = at.T.shape[-2:]
        squared = equation.weight.square()
        G = at.alpha[..., None] * self.G
        Q = at.alpha[..., None, None] * self.curvature.along(equation.K)  # (…, B, R, C)
        Q = Q.flatten(-3, -2)
        Qw = Q * squared[..., None, :]
        N = (Qw @ Q.mT).unflatten(-1, (B, R)).unflatten(-3, (B, R))
        N = N * (self.T @ self.T.mT)[..., :, None, :, None]
        cross = (G @ Qw.mT).unflatten(-1, (B, R))  # (…, i; j, l)
        cross = at.T.mT[..., None, :, :, None] * cross[..., :, None, :, :]  # (…, i, k; j, l)
        N = N + cross + cross.transpose(-4, -2).transpose(-3, -1)
        N.diagonal(dim1=-3, dim2=-1).add_(((G * squared[..., None, :]) @ G.mT)[..., None])
        full = torch.diag_embed(torch.ones_like(at.vector))
        full[..., : B * R, : B * R] = N.flatten(-4, -3).flatten(-2)
        if not self._scalars:
            return full
        columns, first = self.pull(torch.cat([D for _, D in self._scalars], dim=-3)), 0
        for place, D in self._scalars:
            which, own = (
                slice(place, place + D.shape[-3] or None),
                columns[..., first : first + D.shape[-3], :],
            )
            full[..., which, :], full[..., which] = own, own.mT
            first += D.shape[-3]
        return full

    def coupling(self) -> Tensor:
        """(…, B, B) the term of JᵀJ that couples the samples, the same for every direction of T."""
        weighted = self.at.alpha[..., None] * self.G * self.equation.weight[..., None, :]
        return weighted @ weighted.mT


class Descended:
    """The equation at rows of unknowns, as `engine.descend` asks for it.

    The normal matrix is formed where it is small, or where conjugate gradients do not converge and
    it can be afforded.
    """

    def __init__(self, problem: EquationProblem, s: Tensor) -> None:
        self.problem, self.s = problem, s
        self.here = Linearized(problem.equation, Unknowns.of_vector(s, problem.B, problem.R))
        self.cost = self.here.cost

    @cached_property
    def _normal(self) -> Normal:
        return Normal(self.cost, self.here.gradient, self.here.normal_matrix, self.costs)

    def step(self, damping: Tensor) -> Tensor:
        here, problem = self.here, self.problem
        if not problem.dense:
            system = NormalSystem.of(here, damping[:, None] * here.normal_diagonal, damping)
            found, converged = system.solve(-here.gradient[:, None], tolerance=0.1, iterations=100)
            if converged or not can_be_dense(problem.B * problem.R, len(problem.equation.b)):
                return found[:, 0]
            problem.dense = True
        return self._normal.step(damping)

    def promised(self, step: Tensor) -> Tensor:
        if self.problem.dense:
            return self._normal.promised(step)
        image = self.here.push(step[:, None]).flatten(1)
        return -(2 * (step * self.here.gradient).sum(1) + image.square().sum(1))

    def costs(self, s: Tensor) -> Tensor:
        self.problem.last = Descended(self.problem, s)
        return self.problem.last.cost


class EquationProblem(NonlinearProblem):
    """α T̃ᵀ G(T K + b, Y) = Uᵀ for B samples: one equation for all starts, or one for each."""

    def __init__(self, equation: Equation, B: int, R: int) -> None:
        self.equation, self.B, self.R = equation, B, R
        self.dense = B * R <= SMALL
        # where costs were asked for, which mostly is where steps lead
        self.last: Descended | None = None

    @property
    def entries(self) -> int:
        return (self.B * self.R) ** 2 if self.dense else self.equation.U.shape[-2:].numel()

    def linearize(self, s: Tensor) -> Descended:
        last, self.last = self.last, None
        return last if last is not None and last.s is s else Descended(self, s)

    def take(self, rows: Tensor) -> EquationProblem:
        taken = EquationProblem(self.equation.take(rows), self.B, self.R)
        taken.dense = self.dense
        return taken


def solve(
    equation: Equation,
    start: Unknowns,
    steps: int | Budget = 100,
    *,
    in_noise_units: bool = False,
    roughly: bool = False,
) -> Unknowns:
    """Minimize ‖residual‖² from `start`, until it stagnates, or for so many `steps`; where that
    ends.

    Where the residual comes in units of its noise, what is below that noise need not be pursued
    further: as soon as it hardly falls, or `roughly` at once. Inexact steps are pursued all the
    same, since a long valley may lead on.
    """
    B, R = start.T.shape[-2:]
    problem = EquationProblem(equation, B, R)
    below = float(equation.U.shape[-2:].numel())
    noise, enough = below * (in_noise_units and problem.dense), below * roughly
    rows = start.vector if start.T.ndim == 3 else start.vector[None]
    # Starts that are solved together are so many as their caller can hold.
    budget = Budget(steps=steps) if isinstance(steps, int) else steps
    ends = descend(problem, rows, budget, StoppingRule(enough, noise)).s
    return Unknowns.of_vector(ends if start.T.ndim == 3 else ends[0], B, R)
