"""What convolutions read, out of their gradients and those of the BatchNorms behind them.

With BatchNorm in eval mode D is known and the maps follow at once (`shared`). In train mode
∂loss/∂z depends on the maps again, through σ and x̂ (`unit`): the gradient times γ/σ less its part
along x̂. That part is small, so it is a fixed point, sped up by Anderson's mixing. What the
equations leave open comes from elsewhere: BatchNorm hides the scale of the maps, and the bias
gradient of the BatchNorm that *feeds* them shows it again (`masks`); where it hides the mean of a
channel, too, its lowest entries are ReLU's zeros. Where a shortcut shows part of the maps
themselves, bounds hold what is known of each entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.peel.residual.joint import Joint
from unsum.peel.residual.shared import Shared
from unsum.running.deadline import out_of_time

_STEPS = 120  # budget of the fixed point
_MEMORY = 8  # steps that Anderson's mixing looks back on
_SETTLED = 1e-9  # relative change at which nothing more is to be had
_ALIKE = 1e-4  # of a channel's range: zeros agree to that, and hardly ever anything else
_PINNINGS = 4  # times that the scale is looked at again
ROUNDING = (
    # of an equation, at least: gradients summed in float32 err by that, and few spare equations may
    # hide it
    1e-6
)
# of the root mean square: entries below are taken for zeros of ReLU at first (`masks` looks again)
FLOOR = 1e-5
_CLEAR = 10.0  # times the predicted error: entries above are no zeros
WALK = "further layers of the walk down"
# Maps and the level of their noise → factor by which they are too small, and how far channels
# scatter about it
Pin = Callable[[Tensor, Tensor], tuple[float, float]]


Places = tuple[slice, slice]


@dataclass(frozen=True)
class Reading:
    """What was read, and how well that explains the gradients."""

    maps: Tensor  # (B, I, h, w), not negative up to the noise
    residual: float  # relative misfit of the equations
    condition: float  # of the matrix that had to be divided by
    errors: Tensor  # (B,) predicted, relative
    level: Tensor  # (B, 1, 1, 1) entries below may be zeros: absolute values
    hidden: list[Places]  # classes of places where nothing tells a channel's mean but its zeros


def undo(
    shared: Shared,
    pin: Pin | None,
    bounds: tuple[Tensor, Tensor] | None = None,
    joint: Joint | None = None,
) -> Reading:
    """The maps that all readers of `shared` read; `joint` adds what their outputs tell, where
    gradients do not suffice.

    `pin` finds the scale; where two `bounds` hold every entry, and are equal where it is known,
    none is needed.
    """
    return _FixedPoint(shared, pin, bounds, joint).run()


class _FixedPoint:
    def __init__(
        self,
        shared: Shared,
        pin: Pin | None,
        bounds: tuple[Tensor, Tensor] | None,
        joint: Joint | None,
    ) -> None:
        self.shared, self.readers, self.bounds, self.joint = shared, shared.readers, bounds, joint
        # In eval mode D is known, and so is the scale.
        self.moves = any(reader.unit.batch_statistics for reader in self.readers)
        self.pin = pin if self.moves else None
        self.residual = self.noise = 1.0
        self.reference = [
            (reader.unit.variance + reader.unit.eps).sqrt() for reader in self.readers
        ]

    def run(self) -> Reading:
        maps, spread = self._settle(self._start()), 0.0
        for _ in range(_PINNINGS if self.pin is not None else 0):
            assert self.pin is not None
            factor, spread = self.pin(maps, self._level(maps))
            maps = factor * maps
            self.reference = [reader.unit.forward(maps)[0] for reader in self.readers]
            maps = self._settle(maps)  # σ is not quite in proportion to the maps, because of its ε
            if abs(factor - 1) < _SETTLED + 0.1 * spread or out_of_time(WALK):
                break
        errors = self._errors(maps) + spread
        hidden = [
            part.places for part in self.shared.parts if part.hides_mean and self.bounds is None
        ]
        condition = self.shared.condition if self.joint is None else self.joint.condition
        return Reading(maps, self.residual, condition, errors, self._level(maps), hidden)

    @property
    def _linear(self) -> bool:
        """Whether one exact division is the answer."""
        return not self.moves and self.bounds is None and self.joint is None

    def _settle(self, maps: Tensor) -> Tensor:
        """The fixed point near `maps`, at the scale of the reference."""
        mixing = _Anderson()
        for _ in range(2 if self._linear else _STEPS):
            found = self._step(maps)
            change = float((found - maps).norm() / found.norm().clamp_min(1e-300))
            if change < (_SETTLED if self.joint is None else ROUNDING) or out_of_time(WALK):
                break
            # Mixing copes with a few directions in which the fixed point would repel or creep; far
            # away it would mislead.
            maps = self._bounded(mixing(maps, found)) if change < 0.05 else found
        return maps

    def _start(self) -> Tensor:
        """As if x̂ were 0 and σ the running one."""
        first = self.readers[0].d.new_zeros(self.shared.size)
        maps = (
            first
            if self.bounds is None
            else torch.where(self.bounds[0] == self.bounds[1], self.bounds[0], first)
        )
        misfit = []
        for reader, sigma in zip(self.readers, self.reference, strict=True):
            told = (sigma / reader.unit.divisor).view(-1, 1, 1, 1) * reader.unit.grad_W
            misfit.append(told - reader.unit.times(reader.unit.centered(reader.d), maps))
        return self._bounded(self._with_means(maps + self._divided(misfit, maps)))

    def _divided(self, misfit: list[Tensor], maps: Tensor) -> Tensor:
        if self.joint is None:
            return self.shared.solve(misfit)
        return self.joint.solve(misfit, [output.misfit(maps) for output in self.joint.outputs])

    def _step(self, maps: Tensor) -> Tensor:
        told, deviations = zip(*(reader.unit.told(maps) for reader in self.readers), strict=True)
        misfit = [
            t - r.unit.times(r.unit.centered(r.d), maps)
            for t, r in zip(told, self.readers, strict=True)
        ]
        left, whole = (
            sum(
                float((r.weight.view(-1, 1, 1, 1) * m).square().sum())
                for r, m in zip(self.readers, side, strict=True)
            )
            for side in (misfit, told)
        )
        equations = sum(m.numel() for m in misfit)
        spare = max(self.shared.spare, 0.02)
        self.residual = (left / max(whole, 1e-300)) ** 0.5
        self.noise = (left / equations / spare + whole / equations * ROUNDING**2) ** 0.5
        found = self._with_means(maps + self._divided(misfit, maps))
        if self.bounds is not None:
            return self._bounded(found)
        # All of it holds for any multiple of the maps, too: the reference keeps the scale.
        return (
            found
            * torch.cat([r / s for r, s in zip(self.reference, deviations, strict=True)]).median()
        )

    def _with_means(self, maps: Tensor) -> Tensor:
        """Where equations hide a channel's mean, its lowest entries are ReLU's zeros, or known
        entries tell."""
        for part in self.shared.parts:
            if not part.hides_mean:
                continue
            where = (..., *part.places)
            values = maps[where]
            if self.bounds is None:
                shift = _lowest(values)
            else:
                low, top = (bound[where] for bound in self.bounds)
                known = low == top
                count = known.sum((0, 2, 3), keepdim=True)
                shift = ((values - low) * known).sum((0, 2, 3), keepdim=True) / count.clamp_min(1)
            maps = maps.clone()
            maps[where] = values - shift
        return maps

    def _bounded(self, maps: Tensor) -> Tensor:
        return maps if self.bounds is None else maps.clamp(*self.bounds)

    def _errors(self, maps: Tensor) -> Tensor:
        return (self.joint or self.shared).errors(self.noise, maps)

    def _level(self, maps: Tensor) -> Tensor:
        """(B, 1, 1, 1) a multiple of each sample's noise."""
        size = maps.square().mean((1, 2, 3), keepdim=True).sqrt()
        return size * (_CLEAR * self._errors(maps).view(-1, 1, 1, 1)).clamp(FLOOR, _CLEAR)


def _lowest(values: Tensor) -> Tensor:
    """(1, C, 1, 1) the level of the zeros, which noise scatters: the mean of the entries that are
    as low as the lowest."""
    rows = values.permute(1, 0, 2, 3).flatten(1)
    least, most = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    near = rows <= least + _ALIKE * (most - least)
    return ((rows * near).sum(1) / near.sum(1)).view(1, -1, 1, 1)


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
        gram = gram + 1e-14 * gram.diagonal().sum() * torch.eye(
            len(gram), dtype=gram.dtype, device=gram.device
        )
        weights = torch.linalg.solve(gram, apart.T @ self.changes[-1].flatten())
        for weight, earlier in zip(weights, self.found[:-1], strict=True):
            found = found - weight * (self.found[-1] - earlier)
        return found
