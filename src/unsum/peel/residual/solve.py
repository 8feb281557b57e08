"""What a convolution read, out of its gradient and that of the BatchNorm behind it.

The gradient of the weights is ∇W = (∂loss/∂z)ᵀ A, where ∂loss/∂z depends on A again through σ and x̂ (see `unit`). With D the
gradient behind the BatchNorm, less its mean, and A_c the columns less theirs,

    Dᵀ A_c = diag(σ/γ) ∇W + diag(∇γ/N) x̂ᵀ A_c ,

N unknown rows, O equations for each column: determined while N ≤ O + 1 or so. The right side changes little with A, so it is
solved as a fixed point, damped at first and with Anderson's mixing at the end. What the equation leaves open comes from
elsewhere: inputs are not negative and some are exactly zero (ReLU, padding), which gives the columns' means; BatchNorm makes the
scale of A invisible, and the bias gradient of the BatchNorm that *feeds* A shows it again: ∇β = Σ ∂loss/∂A over the places where
A > 0 (`masks`). Where a shortcut shows part of the input itself, bounds hold what is known of each entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.peel.residual.unit import Unit

_RANK = 1e-6  # of the largest singular value: what is below is rounding
_STEPS = 120  # budget of a unit's iterations
_FIRST_DAMPING, _DECAY, _LAST_DAMPING = 0.5, 0.8, 1e-4  # of the largest singular value
_MEMORY = 6  # steps that Anderson's mixing looks back on
_SETTLED = 1e-9  # relative change at which nothing more is to be had
_NEAR = 1e-3  # relative change below which the scale is taken from the BatchNorm that feeds the unit
FLOOR = 1e-5  # of the root mean square: entries below are taken for zeros of ReLU at first (`masks` looks again)
Pin = Callable[[Tensor, float], float]  # maps and the level of their noise → factor by which they are too small


@dataclass(frozen=True)
class Reading:
    """What a unit read, and how well that explains its gradient."""

    maps: Tensor  # (B, I, h, w), not negative up to the noise
    residual: float  # relative misfit of the equation
    condition: float  # of the gradient that had to be divided by
    level: float  # entries below may be zeros: an absolute value

    @property
    def predicted_error(self) -> float:
        return self.residual * self.condition


def undo(unit: Unit, d: Tensor, size: torch.Size, pin: Pin | None, bounds: tuple[Tensor, Tensor] | None) -> Reading:
    """The (B, I, h, w) = `size` input of `unit`, from d (N, O), the gradient behind its BatchNorm.

    `pin` finds the scale; where two `bounds` hold every entry, and are equal where it is known, none is needed.
    """
    return _FixedPoint(unit, d, size, pin, bounds).run()


class _FixedPoint:
    def __init__(
        self, unit: Unit, d: Tensor, size: torch.Size, pin: Pin | None, bounds: tuple[Tensor, Tensor] | None
    ) -> None:
        self.unit, self.size, self.pin, self.bounds = unit, size, pin, bounds
        self.centered = centered = d - d.mean(0) if unit.batch_statistics else d
        squares, U = torch.linalg.eigh(centered @ centered.T)  # many times faster than the SVD of the matrix itself
        s = squares.clamp_min(0).sqrt()
        kept = s > _RANK * s[-1]
        U, s = U[:, kept], s[kept]
        self.factors = U, s, (U / s).T @ centered
        full = int(kept.sum()) >= len(d) - int(unit.batch_statistics)
        self.condition = float(s[-1] / s[0]) if full else math.inf
        self.residual, self.change, self.pinned = 1.0, 1.0, False
        self.deviation = (unit.variance + unit.eps).sqrt()
        where = torch.ones(1, 1, *size[2:], dtype=centered.dtype, device=centered.device)
        # (N, I k k) booleans: the columns' entries that padding wrote
        self.padded = (unit.columns(where.expand(size[0], unit.W.shape[1], -1, -1)) == 0) if unit.kernel > 1 else None

    def run(self) -> Reading:
        maps, mixing = self._start(), _Anderson()
        for step in range(_STEPS):
            # Bounds come with a poor start, and damping keeps what is weakly determined near it until the rest is found.
            damping = 0.0 if self.bounds is None else max(_LAST_DAMPING, _FIRST_DAMPING * _DECAY**step)
            found = self._step(maps, damping)
            self.change = _apart(found, maps)
            if self.change < _SETTLED:
                maps = found
                break
            if self.pin is not None and not self.pinned and self.change < _NEAR:
                self.pinned, mixing = True, _Anderson()  # the scale jumps: earlier steps would mislead
                maps = found
                continue
            # Mixing copes with a few directions in which the fixed point would repel or creep; far away it would mislead, too.
            maps = self._bounded(mixing(maps, found)) if damping < 0.05 and self.change < 0.05 else found
        level = max(self._level(maps), self.residual * self.condition * float(maps.square().mean().sqrt()))
        return Reading(maps, self.residual, self.condition, level)

    def _start(self) -> Tensor:
        """Without a shortcut: as if x̂ were 0 and σ the running one; with one: what it shows, and little elsewhere."""
        if self.bounds is not None:
            low, top = self.bounds
            return torch.where(low == top, low, 0.3 * torch.minimum(top, self._mean_of_known(low)))
        rhs = (self.deviation / self.unit.gamma)[:, None] * self.unit.grad_W.flatten(1)
        return self._settled(self._divided(rhs, 0.0))

    def _divided(self, rhs: Tensor, damping: float) -> Tensor:
        U, s, Vt = self.factors
        inverse = s / (s.square() + (damping * s[-1]) ** 2)
        return U @ (inverse[:, None] * (Vt @ rhs))

    def _step(self, maps: Tensor, damping: float) -> Tensor:
        unit, columns = self.unit, self.unit.columns(maps)
        sigma, normal = unit.forward(columns)
        rhs = (sigma / unit.gamma)[:, None] * unit.grad_W.flatten(1)
        if unit.batch_statistics:
            rhs = rhs + (unit.grad_gamma / len(normal))[:, None] * (normal.T @ columns)
        misfit = rhs - self.centered.T @ columns
        self.residual = float(misfit.norm() / rhs.norm().clamp_min(1e-300))
        return self._settled(columns + self._divided(misfit, damping))

    def _settled(self, columns: Tensor) -> Tensor:
        """Maps out of columns whose means and scale the equation does not tell."""
        if not self.unit.batch_statistics:
            return self._bounded(self.unit.folded(self._without_padding(columns), self.size))
        maps = self.unit.folded(self._with_means(columns), self.size)
        if self.bounds is not None:  # means where entries are known
            return self._bounded(maps - self._mean_of_known(maps - self.bounds[0]))
        if self.pin is not None and self.pinned:
            return maps * self.pin(maps, self._level(maps))
        sigma = self.unit.forward(self.unit.columns(maps))[0]
        return maps * (self.deviation / sigma).median()

    def _mean_of_known(self, values: Tensor) -> Tensor:
        """(1, I, 1, 1) over the entries that the bounds tell."""
        assert self.bounds is not None
        known = self.bounds[0] == self.bounds[1]
        return (values * known).sum((0, 2, 3), keepdim=True) / known.sum((0, 2, 3), keepdim=True).clamp_min(1)

    def _without_padding(self, columns: Tensor) -> Tensor:
        return columns if self.padded is None else columns * ~self.padded

    def _with_means(self, columns: Tensor) -> Tensor:
        """Padding is zero. A column that it does not reach agrees with its copies in others, or its lowest are ReLU's zeros."""
        lowest = columns.amin(0)
        if self.padded is None:
            return columns if self.bounds is not None else columns - lowest
        padding = (columns * self.padded).sum(0) / self.padded.sum(0).clamp_min(1)
        reached = self.padded.any(0)
        sure = (~self.padded & reached).to(columns)
        shifted = (columns - padding) * sure
        count = self.unit.summed(sure, self.size)
        copies = self.unit.columns(self.unit.summed(shifted, self.size) / count.clamp_min(1))
        told = self.unit.columns((count > 0).to(columns))
        shift = ((columns - copies) * told).sum(0) / told.sum(0).clamp_min(1)
        shift = torch.where(told.any(0), shift, lowest)
        return self._without_padding(columns - torch.where(reached, padding, shift))

    def _bounded(self, maps: Tensor) -> Tensor:
        return maps if self.bounds is None else maps.clamp(*self.bounds)

    def _level(self, maps: Tensor) -> float:
        noise = max(FLOOR, 10 * (self.residual + self.change))
        return noise * float(maps.square().mean().sqrt())


def _apart(found: Tensor, maps: Tensor) -> float:
    """Relative change up to scale: a scale that is found anew says nothing of the rest."""
    scaled = maps * ((maps * found).sum() / maps.square().sum().clamp_min(1e-300))
    return float((found - scaled).norm() / found.norm().clamp_min(1e-300))


class _Anderson:
    """Anderson's mixing: the combination of the last steps whose changes cancel best."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []
        self.changes: list[Tensor] = []

    def __call__(self, old: Tensor, found: Tensor) -> Tensor:
        self.found = [*self.found, found][-_MEMORY:]
        self.changes = [*self.changes, found - old][-_MEMORY:]
        if len(self.changes) < 2:
            return found
        apart = torch.stack([(self.changes[-1] - c).flatten() for c in self.changes[:-1]], 1)
        gram = apart.T @ apart
        gram = gram + 1e-14 * gram.diagonal().sum() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        weights = torch.linalg.solve(gram, apart.T @ self.changes[-1].flatten())
        for weight, earlier in zip(weights, self.found[:-1], strict=True):
            found = found - weight * (self.found[-1] - earlier)
        return found
