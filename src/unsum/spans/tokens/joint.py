"""All tokens of a batch solved for together: what the spans say of each alone, and what the sum of all says besides.

    minimize over Z, D   ‖∇W₁ − D₁ᵀ [Z, 1]‖² / σ₁² + ‖∇W₂ − Dᵀ [act(W₁ z + b₁), 1]‖² / σ₂²        D₁ = (D W₂) · act′(W₁ z + b₁)

Z are the tokens and D is what each gets back. A token that sends little is known worst by the spans, and this moves it most.
Gauss–Newton with Levenberg's damping; the steps are conjugate gradients, whose every product is a few small matrices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.deadline import out_of_time
from unsum.engine.conjugate import Product, least_squares
from unsum.spans.basis import rounding_of
from unsum.spans.tokens.block import FirstBlock
from unsum.update import Update

_STEPS = 12  # of Gauss–Newton: three are enough where tokens are few, and crowds need damping at first
_INNER = 100  # [iterations] of conjugate gradients in each step. Chosen by: arbitrary budget.
_TOLERANCE = 3e-3  # [of the residual at first]. Chosen by: arbitrary budget.
_STILL = 0.98  # of the squares that were left: what a step must get below for another to be worth it
_FIRST, _LESS, _MORE = 1e-1, 0.1, 10.0  # damping, relative to the conditioner
_RIDGE = 1e-10  # of the conditioner's mean, so that it can be inverted
_PATIENCE = 60.0  # seconds of all: half of what the search waits for one more token

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _MLP:
    """The two gradients, biases beside them, in units of their rounding, and what makes them."""

    G1: Tensor
    G2: Tensor
    units: tuple[float, float]
    W1: Tensor
    W2: Tensor
    block: FirstBlock

    @classmethod
    def of(cls, block: FirstBlock, update: Update, like: Tensor) -> _MLP:
        sent, units = [], []
        for one in (block.first, block.second):
            grad, bias = update.gradients[one.weight], update.gradients.get(one.bias or "")
            units.append(rounding_of(grad))
            whole = grad if bias is None else torch.cat([grad, bias[:, None]], 1)
            sent.append(whole.to(like) / units[-1])
        return cls(sent[0], sent[1], (units[0], units[1]), block.first.W.to(like), block.second.W.to(like), block)

    def with_ones(self, rows: Tensor, gradient: Tensor, one: float = 1.0) -> Tensor:
        biased = gradient.shape[1] > rows.shape[1]
        return torch.cat([rows, torch.full_like(rows[:, :1], one)], 1) if biased else rows


class _Here:
    """The derivative at (Z, D), there and back, and its conditioner: the Gram matrices of what multiplies each unknown."""

    def __init__(self, mlp: _MLP, Z: Tensor, D: Tensor) -> None:
        act, (u1, u2) = mlp.block.activation, mlp.units
        self.mlp, H = mlp, mlp.block.first(Z)
        self.Z, self.A = mlp.with_ones(Z, mlp.G1) / u1, mlp.with_ones(act.function(H), mlp.G2) / u2
        self.slope, self.back = act.slope(H), D @ mlp.W2
        self.D, self.D1 = D, self.back * self.slope
        self.left = mlp.G1 - self.D1.T @ self.Z, mlp.G2 - D.T @ self.A
        self.H = H

    def linearize(self) -> None:
        mlp, (u1, u2) = self.mlp, self.mlp.units
        curved = self.H.detach().requires_grad_()
        with torch.enable_grad():
            bend = torch.autograd.grad(mlp.block.activation.slope(curved).sum(), curved)[0]
        self.bend = self.back * bend
        first = float(self.slope.square().mean() * mlp.W1.square().sum() / mlp.W1.shape[1])
        second = float(self.slope.square().mean() * mlp.W2.square().sum() / mlp.W2.shape[0])
        grams = (
            self.D1 @ self.D1.T / u1**2 + first * self.D @ self.D.T / u2**2,
            self.A @ self.A.T + second * self.Z @ self.Z.T,
        )
        eye = torch.eye(len(self.D)).to(self.D)
        self.grams = [gram + _RIDGE * gram.diagonal().mean() * eye for gram in grams]
        self.factors = [torch.linalg.cholesky(gram) for gram in self.grams]

    def pushed(self, v: Pair) -> Pair:
        mlp, (u1, u2) = self.mlp, self.mlp.units
        dH = v[0] @ mlp.W1.T
        dD1 = (v[1] @ mlp.W2) * self.slope + self.bend * dH
        dZ, dA = mlp.with_ones(v[0], mlp.G1, 0.0) / u1, mlp.with_ones(self.slope * dH, mlp.G2, 0.0) / u2
        return dD1.T @ self.Z + self.D1.T @ dZ, v[1].T @ self.A + self.D.T @ dA

    def pulled(self, rest: Pair) -> Pair:
        mlp, (u1, u2) = self.mlp, self.mlp.units
        at_D1 = self.Z @ rest[0].T
        at_A = (self.D @ rest[1])[:, : self.slope.shape[1]] / u2
        at_H = at_D1 * self.bend + at_A * self.slope
        at_Z = (self.D1 @ rest[0])[:, : mlp.W1.shape[1]] / u1
        return at_Z + at_H @ mlp.W1, self.A @ rest[1].T + (at_D1 * self.slope) @ mlp.W2.T

    def step(self, damping: float, moves: float = 1.0) -> Pair:
        """The damped step, by conjugate gradients; tokens stay where they are if `moves` is zero."""
        d, (first, second) = self.mlp.W1.shape[1], self.left

        def push(v: Tensor) -> Tensor:
            return _flat(self.pushed((v[:, :d], v[:, d:])))

        def pull(rest: Tensor) -> Tensor:
            one, other = rest.split([first.numel(), second.numel()])
            at_Z, at_D = self.pulled((one.view_as(first), other.view_as(second)))
            return torch.cat([moves * at_Z, at_D], 1)

        def each(of: Callable[[int, Tensor], Tensor]) -> Product:
            return lambda v: torch.cat([of(0, v[:, :d]), of(1, v[:, d:])], 1)

        v, _ = least_squares(
            push,
            pull,
            pull(_flat(self.left)),
            _TOLERANCE,
            _INNER,
            ridge=each(lambda i, part: damping * (self.grams[i] @ part)),
            precondition=each(lambda i, part: torch.cholesky_solve(part, self.factors[i])),
        )
        return v[:, :d], v[:, d:]


def _flat(pair: Pair) -> Tensor:
    return torch.cat([part.flatten() for part in pair])


def _refitted(here: _Here, Z: Tensor) -> _Here:
    """With the D that fits these tokens best: of two tokens that are alike, one that moves changes what both get by much, and
    steps of tokens and D at once keep to a narrow bent valley (Golub and Pereyra's variable projection)."""
    here.linearize()
    return _Here(here.mlp, Z, here.D + here.step(0.0, moves=0.0)[1])


def together(block: FirstBlock, update: Update, Z: Tensor) -> Tensor:
    """Tokens Z (N, d) moved until both gradients of the first MLP fit as well as they can."""
    mlp = _MLP.of(block, update, Z)
    here = _Here(mlp, Z, torch.zeros_like(Z))
    D = torch.linalg.lstsq(here.A.T, mlp.G2.T).solution
    here, damping, start = _Here(mlp, Z, D), _FIRST, time.monotonic()
    cost = float(_flat(here.left).square().sum())
    for _ in range(_STEPS):
        if time.monotonic() > start + _PATIENCE or out_of_time("the last digits of tokens"):
            break
        here.linearize()
        v = here.step(damping)
        there = _refitted(_Here(mlp, Z + v[0], D + v[1]), Z + v[0])
        left = float(_flat(there.left).square().sum())
        if not left < cost:
            damping *= _MORE
            continue
        Z, D, here, damping, done = Z + v[0], there.D, there, damping * _LESS, left > _STILL * cost
        cost = left
        if done:
            break
    return Z
