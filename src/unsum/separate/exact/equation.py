"""The one equation, α T̃ᵀ (softmax(T K + b) − Y) = Uᵀ, with its residual, derivatives and normal matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

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
    copies: Tensor | None = None  # (B,) how many samples of the batch each row stands for
    floor_free: bool = False
    alpha_free: bool = False

    @property
    def has_bias(self) -> bool:
        return self.U.shape[1] > self.K.shape[0]

    def with_rows(self, weight: Tensor) -> Equation:
        return replace(self, weight=weight)

    def extended(self, T: Tensor) -> Tensor:
        """T̃: T with the constant feature that the bias sees."""
        return torch.cat([T, T.new_full((len(T), 1), self.beta)], dim=1) if self.has_bias else T

    def probabilities(self, T: Tensor) -> Tensor:
        return torch.softmax(T @ self.K + self.b, dim=1)

    def errors(self, at: Unknowns, P: Tensor) -> Tensor:
        """E = P − Y, each row times its copies: (B, C)."""
        E = P - at.floor if self.Y is None else P - self.Y * (1 - self.K.shape[1] * at.floor) - at.floor
        return E if self.copies is None else E * self.copies[:, None]

    def residual(self, at: Unknowns) -> Tensor:
        """(C, R [+ 1]) weighted misfit of the gradient."""
        E = self.errors(at, self.probabilities(at.T))
        return self.weight[:, None] * (at.alpha * E.T @ self.extended(at.T) - self.U)


class Linearized:
    """The equation at one point: residual r, products with its Jacobian J, and JᵀJ."""

    def __init__(self, equation: Equation, at: Unknowns) -> None:
        self.equation, self.at = equation, at
        self.P = equation.probabilities(at.T)
        self.E = equation.errors(at, self.P)
        self.T = equation.extended(at.T)
        self.residual = equation.weight[:, None] * (at.alpha * self.E.T @ self.T - equation.U)
        self.cost = self.residual.square().sum()
        copies = equation.copies
        self.nP = self.P if copies is None else self.P * copies[:, None]

    def floor_derivative(self) -> Tensor:
        equation = self.equation
        dE = -torch.ones_like(self.P) if equation.Y is None else self.P.shape[1] * equation.Y - 1
        if equation.copies is not None:
            dE = dE * equation.copies[:, None]
        return equation.weight[:, None] * (self.at.alpha * dE.T @ self.T)

    def alpha_derivative(self) -> Tensor:
        return self.equation.weight[:, None] * (self.at.alpha * self.E.T @ self.T)

    def pull(self, V: Tensor) -> Tensor:
        """Jᵀ V for V of the residual's shape."""
        equation, at = self.equation, self.at
        R = equation.K.shape[0]
        weighted = equation.weight[:, None] * V
        Z = self.T @ weighted.T
        Z = self.nP * (Z - (self.P * Z).sum(1, keepdim=True))
        dT = at.alpha * (self.E @ weighted[:, :R] + Z @ equation.K.T)
        floor = (self.floor_derivative() * V).sum() if equation.floor_free else V.new_zeros(())
        alpha = (self.alpha_derivative() * V).sum() if equation.alpha_free else V.new_zeros(())
        return torch.cat([dT.flatten(), floor[None], alpha[None]])

    def push(self, step: Tensor) -> Tensor:
        """J step, of the residual's shape."""
        equation, at = self.equation, self.at
        B, R = at.T.shape
        D = step[: B * R].view(B, R)
        dL = D @ equation.K
        dE = self.nP * (dL - (self.P * dL).sum(1, keepdim=True))
        change = dE.T @ self.T
        change[:, :R] += self.E.T @ D
        change = equation.weight[:, None] * (at.alpha * change)
        if equation.floor_free:
            change = change + step[-2] * self.floor_derivative()
        if equation.alpha_free:
            change = change + step[-1] * self.alpha_derivative()
        return change

    def normal_diagonal(self) -> Tensor:
        """The diagonal of JᵀJ; 1 for scalars that are not free."""
        equation, at, K = self.equation, self.at, self.equation.K
        squared = equation.weight.square()
        mean = self.P @ K.T
        spread = self.nP.square() * squared
        own = spread @ K.T.square() - 2 * mean * (spread @ K.T) + mean.square() * spread.sum(1, keepdim=True)
        mixed = self.E * squared * self.nP
        cross = mixed @ K.T - mean * mixed.sum(1, keepdim=True)
        T_part = self.T.square().sum(1, keepdim=True) * own + 2 * at.T * cross
        T_part = T_part + (self.E.square() @ squared)[:, None]
        floor = self.floor_derivative().square().sum() if equation.floor_free else T_part.new_ones(())
        alpha = self.alpha_derivative().square().sum() if equation.alpha_free else T_part.new_ones(())
        return torch.cat([(at.alpha.square() * T_part).flatten(), floor[None], alpha[None]])

    def normal_matrix(self) -> Tensor:
        """JᵀJ, (B·R + 2)², from its structure: C·(B R)² operations where J itself would need R times as many."""
        equation, at = self.equation, self.at
        B, R = at.T.shape
        squared = equation.weight.square()
        centered = equation.K - (self.P @ equation.K.T)[:, :, None]  # (B, R, C)
        Q = self.nP[:, None, :] * centered
        Qw = Q * squared
        N = (Qw.reshape(B * R, -1) @ Q.reshape(B * R, -1).T).view(B, R, B, R)
        N = N * (self.T @ self.T.T)[:, None, :, None]
        cross = torch.einsum("ic,jlc->ijl", self.E, Qw)  # (i; j, l)
        cross = torch.einsum("jk,ijl->ikjl", at.T, cross)
        N = N + cross + cross.permute(2, 3, 0, 1)
        N.diagonal(dim1=1, dim2=3).add_(((self.E * squared) @ self.E.T)[:, :, None])
        full = N.new_zeros(B * R + 2, B * R + 2)
        full[:-2, :-2] = at.alpha.square() * N.reshape(B * R, B * R)
        for index, free, derivative in (
            (-2, equation.floor_free, self.floor_derivative),
            (-1, equation.alpha_free, self.alpha_derivative),
        ):
            if free:
                column = self.pull(derivative())
                full[index], full[:, index] = column, column
            else:
                full[index, index] = 1.0
        return full
