"""All tokens of a batch solved for together: what the spans say of each alone, and what the sum of
all says besides.

    minimize over Z, D   ‖∇W₁ − D₁ᵀ [Z, 1]‖² / σ₁² + ‖∇W₂ − Dᵀ [act(W₁ z + b₁), 1]‖² / σ₂²        D₁
    = (D W₂) · act′(W₁ z + b₁)

Z are the tokens and D is what each gets back. A token that sends little is known worst by the
spans, and this moves it most. Gauss–Newton with Levenberg's damping; the steps are conjugate
gradients, whose every product is a few small matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.conjugate import Product
from unsum.engine.descend import NonlinearProblem, Products, StoppingRule, descend
from unsum.spans.basis import rounding_of
from unsum.spans.tokens.block import FirstBlock
from unsum.update import Update

# Three steps are enough where tokens are few, and crowds need damping at first; half as many
# seconds as the search waits for one more token. Chosen by: arbitrary budget.
_DESCENT = Budget(steps=12, stalled=0.98, patience=1, seconds=60.0)
_INNER = 100  # [iterations] of conjugate gradients in each step. Chosen by: arbitrary budget.
_TOLERANCE = 3e-3  # [of the residual at first]. Chosen by: arbitrary budget.
# [of the preconditioner's mean diagonal] added, so that it can be inverted.
# Chosen by: float64's precision.
_RIDGE = 1e-10

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _MLP(NonlinearProblem):
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
        return cls(
            sent[0],
            sent[1],
            (units[0], units[1]),
            block.first.W.to(like),
            block.second.W.to(like),
            block,
        )

    def with_ones(self, rows: Tensor, gradient: Tensor, one: float = 1.0) -> Tensor:
        biased = gradient.shape[1] > rows.shape[1]
        return torch.cat([rows, torch.full_like(rows[:, :1], one)], 1) if biased else rows

    def linearize(self, s: Tensor) -> Products:
        return self.at(s).linearized().products()

    def at(self, s: Tensor) -> _Here:
        d = self.W1.shape[1]
        return _Here(self, s[0, :, :d], s[0, :, d:])

    def costs(self, s: Tensor) -> Tensor:
        return _flat(self.at(s).left).square().sum(1)

    def moved(self, s: Tensor, step: Tensor) -> Tensor:
        """With the D that fits the moved tokens best.

        Of two tokens that are alike, one that moves changes what both get by much, and steps of
        tokens and D at once keep to a narrow bent valley (variable projection, Golub and Pereyra).
        """
        there = s + step
        refit = self.at(there).linearized().products(moves=0.0)
        return there + refit.step(there.new_zeros(1))


class _Here:
    """The derivative at (Z, D), there and back, and its conditioner: the Gram matrices of what
    multiplies each unknown."""

    def __init__(self, mlp: _MLP, Z: Tensor, D: Tensor) -> None:
        act, (u1, u2) = mlp.block.activation, mlp.units
        self.mlp, H = mlp, mlp.block.first(Z)
        self.Z, self.A = mlp.with_ones(Z, mlp.G1) / u1, mlp.with_ones(act.function(H), mlp.G2) / u2
        self.slope, self.back = act.slope(H), D @ mlp.W2
        self.D, self.D1 = D, self.back * self.slope
        self.left = mlp.G1 - self.D1.T @ self.Z, mlp.G2 - D.T @ self.A
        self.H = H

    def linearized(self) -> _Here:
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
        return self

    def pushed(self, v: Pair) -> Pair:
        mlp, (u1, u2) = self.mlp, self.mlp.units
        dH = v[0] @ mlp.W1.T
        dD1 = (v[1] @ mlp.W2) * self.slope + self.bend * dH
        dZ, dA = (
            mlp.with_ones(v[0], mlp.G1, 0.0) / u1,
            mlp.with_ones(self.slope * dH, mlp.G2, 0.0) / u2,
        )
        return dD1.T @ self.Z + self.D1.T @ dZ, v[1].T @ self.A + self.D.T @ dA

    def pulled(self, rest: Pair) -> Pair:
        mlp, (u1, u2) = self.mlp, self.mlp.units
        at_D1 = self.Z @ rest[0].T
        at_A = (self.D @ rest[1])[:, : self.slope.shape[1]] / u2
        at_H = at_D1 * self.bend + at_A * self.slope
        at_Z = (self.D1 @ rest[0])[:, : mlp.W1.shape[1]] / u1
        return at_Z + at_H @ mlp.W1, self.A @ rest[1].T + (at_D1 * self.slope) @ mlp.W2.T

    def products(self, moves: float = 1.0) -> Products:
        """The derivative at one point (1, N, d + m), [Z, D]; tokens stay in place if `moves` is
        zero."""
        d, (first, second) = self.mlp.W1.shape[1], self.left

        def push(v: Tensor) -> Tensor:
            return _flat(self.pushed((v[0, :, :d], v[0, :, d:])))

        def pull(rest: Tensor) -> Tensor:
            one, other = rest[0].split([first.numel(), second.numel()])
            at_Z, at_D = self.pulled((one.view_as(first), other.view_as(second)))
            return torch.cat([moves * at_Z, at_D], 1)[None]

        def each(of: Callable[[int, Tensor], Tensor]) -> Product:
            return lambda v: torch.cat([of(0, v[0, :, :d]), of(1, v[0, :, d:])], 1)[None]

        left = _flat(self.left)
        return Products(
            left.square().sum(1),
            -pull(left),
            push,
            pull,
            self.mlp.costs,
            _TOLERANCE,
            _INNER,
            metric=each(lambda i, part: self.grams[i] @ part),
            precondition=lambda _: each(
                lambda i, part: torch.cholesky_solve(part, self.factors[i])
            ),
        )


def _flat(pair: Pair) -> Tensor:
    return torch.cat([part.flatten() for part in pair])[None]


def together(block: FirstBlock, update: Update, Z: Tensor) -> Tensor:
    """Tokens Z (N, d) moved until both gradients of the first MLP fit as well as they can."""
    mlp = _MLP.of(block, update, Z)
    here = _Here(mlp, Z, torch.zeros_like(Z))
    D = torch.linalg.lstsq(here.A.T, mlp.G2.T).solution
    rule = StoppingRule(untried="the last digits of tokens")
    end = descend(mlp, torch.cat([Z, D], 1)[None], _DESCENT, rule)
    return end.s[0, :, : Z.shape[1]]
