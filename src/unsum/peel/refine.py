"""Round and round: the input gives every activation above it, these give every δ, and δ gives the
input, more precisely.

Peeling goes down once, with δ made of what the separator found. But the deepest X also *predicts*
everything above it: z_l, the softmax and so δ_l, with the errors of a forward pass instead of the
errors of an inversion. Solving the deepest layer again with these,

    X ← lstsq(δ_1(X)ᵀ, ∇W_1),

is a fixed-point iteration. The truth is its fixed point. Near it, errors shrink by a factor per
round (the `gain`), which is small where logits move little with the input: precisely where the
separator has the most trouble. X = T A stays in the row space A of ∇W_1, so that a round costs B²
numbers and a pass over the upper layers, whatever the input's size. For ReLU the sign of z decides,
and within the error of z the column space of ∇W_l does (`dense.decide`).

A separator that is a little off spreads its error over the entries of Y. One-hot and smoothed rows
have a form of their own, so that nearness to it tells what they were: onehot (1 − C f) + f with one
floor f for the whole batch. Mixed rows keep their large entries and lose the small ones.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import orthonormal_rows
from unsum.leak import Leak
from unsum.network.chain import Step
from unsum.network.products import right_product
from unsum.peel.dense import SAFETY, column_space, decide, head_factor, open_range, standard_errors
from unsum.running.deadline import out_of_time

_ROUNDS = 12  # budget
_STILL = 1e-9  # relative movement of T at which it has settled
# Errors of z to begin with, where predicted ones are worst cases and leave everything open.
_WIDTHS = (1e-3, 1e-2, 1e-1, 1e-4)
_EXPLAINED = 1e-5  # residual at which there is nothing left for other targets to explain
_CONTRACTS = 0.9  # a larger gain says that the rounds lead nowhere
_PROBE = 1e-6  # relative size of the disturbance that measures the gain
# largest deviation of any entry with which a form of the targets is tried; the gradients decide
_NEAR = 0.3
_WEIGHT = 0.02  # least weight of a label in a mixed row


@dataclass(frozen=True)
class Refined:
    """X (B, D), predicted relative errors (B,) and the largest relative residual of any layer."""

    X: Tensor
    Y: Tensor  # targets that explain the gradients best
    delta: Tensor  # of the deepest layer
    errors: Tensor
    residual: float
    rounds: int


class Rounds:
    """The map X → X, seen as T → T in the row space A (orthonormal rows) of the deepest layer's
    gradient."""

    def __init__(self, steps: list[Step], A: Tensor, Y: Tensor, factor: float) -> None:
        self.steps, self.A, self.Y, self.factor = steps, A, Y, factor
        self.free = torch.zeros_like(self.Y, dtype=torch.bool)
        self.K = right_product(steps[0].W, self.A).T
        self.U = right_product(steps[0].grad_W, self.A)
        self.W = [step.W.double() for step in steps[1:]]
        self.b = [0.0 if step.b is None else step.b.double() for step in steps]
        self.spaces: dict[int, Tensor] = {}
        self.masks: list[Tensor | None] = [None] * (len(steps) - 1)

    def outputs(self, T: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """z of every layer, and x of every layer but the first; a ReLU lets through what was
        decided before, if anything."""
        z, x = [T @ self.K + self.b[0]], []
        for i, step in enumerate(self.steps[:-1]):
            mask = self.masks[i]
            x.append(step.activation.function(z[i]) if mask is None else z[i] * mask)
            z.append(x[i] @ self.W[i].T + self.b[i + 1])
        return z, x

    def deltas(self, z: list[Tensor], errors: Tensor | None) -> list[Tensor]:
        return self.passed_down(self.factor * (z[-1].softmax(1) - self.Y), z, errors)

    def passed_down(self, delta: Tensor, z: list[Tensor], errors: Tensor | None) -> list[Tensor]:
        """δ of every layer from that of the head; with `errors` (B,) the ReLUs' states are decided
        anew, else they stay."""
        deltas = [delta]
        for i in range(len(self.steps) - 2, -1, -1):
            passed = deltas[0] @ self.W[i]
            deltas.insert(0, passed * self._slope(i, z[i], passed, errors))
        return deltas

    def _slope(self, i: int, z: Tensor, passed: Tensor, errors: Tensor | None) -> Tensor:
        mask = self.masks[i]
        if self.steps[i].activation.family != "relu":
            return self.steps[i].activation.slope(z)
        if mask is not None and errors is None:
            return mask
        sign = (z > 0).to(z)
        if errors is not None:
            certain = z.abs() > open_range(z, errors)[1]
            if not bool(certain.all()):
                sign = decide(self._space(i), passed, (1 - sign, sign), certain)[0]
        self.masks[i] = sign
        return sign

    def _space(self, i: int) -> Tensor:
        """The column space of a layer's gradient, found when it is first asked for: it costs two
        passes."""
        if i not in self.spaces:
            self.spaces[i] = column_space(self.steps[i].grad_W, len(self.A))
        return self.spaces[i]

    def turn(self, T: Tensor, errors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The next T, and the δ of the deepest layer that it was solved with; mixed labels' weights
        follow T."""
        z, x = self.outputs(T)
        if bool(self.free.any()) and x:
            self.Y = refit(
                self.Y, self.free, z[-1].softmax(1), x[-1], self.steps[-1].grad_W, self.factor
            )
        delta = self.deltas(z, errors)[0]
        if not bool(torch.isfinite(delta).all()):
            return torch.full_like(T, torch.nan), delta
        return torch.linalg.pinv(delta.T, rtol=1e-14) @ self.U, delta

    def residuals(self, T: Tensor) -> list[float]:
        """Every layer's ‖∇W_l − δ_lᵀ x_{l−1}‖ / ‖∇W_l‖, the deepest one in its row space."""
        z, x = self.outputs(T)
        deltas = self.deltas(z, None)
        gradients = [self.U, *(step.grad_W.double() for step in self.steps[1:])]
        return [
            float((delta.T @ below - gradient).norm() / gradient.norm())
            for delta, below, gradient in zip(deltas, [T, *x], gradients, strict=True)
        ]

    def gain(self, T: Tensor, seed: int) -> float:
        """How much of a small disturbance is left after a round, in the direction that survives
        best after three."""
        generator = torch.Generator().manual_seed(seed + 2)
        here = self.turn(T)[0]
        disturbance = torch.randn(T.shape, generator=generator, dtype=torch.float64).to(T)
        ratio = 0.0
        for _ in range(3):
            disturbance = disturbance * (_PROBE * T.norm() / disturbance.norm())
            after = self.turn(T + disturbance)[0] - here
            ratio = float(after.norm() / disturbance.norm())
            disturbance = after
            if not ratio >= 1e-3:  # settled at once, or not finite
                break
        return ratio


def refine(
    steps: list[Step], X: Tensor, errors: Tensor, leak: Leak, reduction: str, seed: int
) -> Refined:
    """Rounds from the peeled X until it no longer moves; `errors` (B,) are its predicted relative
    errors.

    The targets are tried tidied first and then as found; what explains the gradients better is
    returned.
    """
    rounds = Rounds(steps, orthonormal_rows(X), leak.targets.to(X), head_factor(leak, reduction))
    # without one, widths make no difference
    relu = any(step.activation.family == "relu" for step in steps)
    answers: list[Refined] = []
    for Y, width in itertools.product(likely_targets(rounds.Y), _WIDTHS):
        rounds.Y, rounds.free, rounds.masks = Y, open_entries(Y), [None] * (len(steps) - 1)
        answers.append(_settle(rounds, X @ rounds.A.T, errors.clamp(max=width), seed))
        if answers[-1].residual < _EXPLAINED or not relu:
            break
    return min(answers, key=lambda answer: answer.residual)


def _settle(rounds: Rounds, T: Tensor, open_errors: Tensor, seed: int) -> Refined:
    """Turn until T stays; the round whose residual is smallest counts."""
    best, change = (math.inf, T, math.inf, rounds.masks, rounds.Y), math.inf
    count = 0
    for count in range(1, _ROUNDS + 1):
        moved, _ = rounds.turn(T, open_errors)
        if not bool(torch.isfinite(moved).all()):
            break
        moves = (moved - T).norm(dim=1) / T.norm(dim=1).clamp_min(1e-300)
        T, previous, change = moved, change, float(moves.max())
        residual = max(rounds.residuals(T))
        if residual < best[0]:
            best = residual, T, change, list(rounds.masks), rounds.Y
        # Unexplained: some state is wrong, keep asking.
        open_errors = torch.minimum(open_errors, moves + residual + 1e-6)
        if (
            not change > _STILL
            or (count > 3 and change > 0.7 * previous)
            or out_of_time("further rounds of peeling")
        ):
            break
    residual, T, change, rounds.masks, rounds.Y = best
    if residual == math.inf:
        return Refined(
            T @ rounds.A, rounds.Y, T, torch.full_like(open_errors, torch.inf), residual, count
        )
    return _certified(rounds, T, residual, change, count, seed)


def _certified(
    rounds: Rounds, T: Tensor, residual: float, change: float, count: int, seed: int
) -> Refined:
    """What is left to move and the regression's own error, and both again in every further round: a
    geometric series."""
    gain = rounds.gain(T, seed)
    delta = rounds.turn(T)[1]
    missing = float((delta.T @ T - rounds.U).norm()) + residual * float(rounds.U.norm())
    dtype = rounds.steps[0].grad_W.dtype
    own = standard_errors(torch.linalg.pinv(delta.T), T, missing, residual, delta, dtype)
    errors = (
        SAFETY * (own + change * gain) / (1 - gain)
        if gain < _CONTRACTS
        else torch.full_like(own, torch.inf)
    )
    return Refined(T @ rounds.A, rounds.Y, delta, errors, residual, count)


def likely_targets(Y: Tensor) -> list[Tensor]:
    """Y (B, C) tidied in the two simplest ways that stay near it, and Y as it is."""
    C = Y.shape[1]
    hard = torch.nn.functional.one_hot(Y.argmax(1), C).to(Y)
    floor = _floor(Y)
    candidates = [hard, hard * (1 - C * floor) + floor, _mixed(Y, 0.0), _mixed(Y, floor)]
    near = [candidate for candidate in candidates if float((candidate - Y).abs().max()) < _NEAR]
    different = (
        [near[0], *(other for other in near[1:] if not torch.equal(other, near[0]))] if near else []
    )
    return [*different[:2], Y]


def _floor(Y: Tensor) -> float:
    """The value that most entries share, 0 where it is below what rounding may leave."""
    floor = float(Y.median())
    return floor if floor * Y.shape[1] > _WEIGHT else 0.0


def _mixed(Y: Tensor, floor: float) -> Tensor:
    """Rows of a few large entries over a floor, with the sum of 1 kept by scaling the entries above
    it."""
    above = torch.where(Y - floor > _WEIGHT, Y - floor, torch.zeros_like(Y))
    return above * ((1 - Y.shape[1] * floor) / above.sum(1, keepdim=True).clamp_min(1e-12)) + floor


def open_entries(Y: Tensor) -> Tensor:
    """(B, C) entries of mixed rows whose weight only the gradient can tell; none in one-hot and
    smoothed rows."""
    limit = _floor(Y) + _WEIGHT / 2
    large = limit < Y
    return large & (large.sum(1, keepdim=True) > 1)


def refit(Y: Tensor, free: Tensor, P: Tensor, F: Tensor, grad_W: Tensor, factor: float) -> Tensor:
    """Y with its free entries fitted to the head's gradient ∇W_c = factor Σ_i (P − Y)_ic f_i, class
    by class."""
    fitted = Y.clone()
    for c in free.any(0).nonzero()[:, 0].tolist():
        members = free[:, c]
        known = (P[:, c] - Y[:, c] * ~members) @ F - grad_W[c].double() / factor
        fitted[members, c] = torch.linalg.lstsq(F[members].T, known[:, None]).solution[:, 0]
    return fitted
