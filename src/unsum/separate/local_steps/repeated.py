"""The same samples in every epoch, and steps so small that their features hardly move: too few
directions to tell epochs apart.

Then a sample's features are taken to move along a line from its first visit to its last, f + s d
with s from 0 to 1, and f and d of all samples are solved for together; the head moves from step to
step as it does. The spread of the d, which many directions hardly show, is estimated along the way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.separate.local_steps.movement import Trajectory, Walk
from unsum.separate.local_steps.polish import (
    EXPLAINED,
    Here,
    Polished,
    Polisher,
    Samples,
    minimized,
)

_ROUNDS = 2  # in which the spread of the moves is estimated anew
_FIRST, _LEAST = 0.3, 1e-4  # of the features: the spread that is assumed at first, and at least
_AFFORDABLE = 400  # unknowns up to which this is tried


class _Drifting(Polisher):
    """The equations for (2 B, R): every sample's first features, then how far each moves until its
    last visit."""

    spread = _FIRST

    def walk(self, at: Tensor) -> Walk:
        first, moves = at[:-1].view(2, -1, self.shape[1])
        visits = (first + self._shares(at)[:, None, None] * moves).flatten(0, 1)
        return self.trajectory.walk(self.counts, visits, self.Y, at[-1].exp())

    def equations(self, point: Tensor, left: Tensor, right: Tensor) -> Tensor:
        first, moves = point[:-1].view(2, -1, self.shape[1])
        # The spread is that of a whole move, and most of a move may lie outside the span of A.
        part = self.spread * first.detach().norm(dim=1, keepdim=True) / self.shape[1] ** 0.5
        return torch.cat([super().equations(point, left, right), (moves / part).flatten()])

    def sizes(self, at: Tensor) -> Tensor:
        first = at[:-1].view(2, -1, self.shape[1])[0].norm(dim=1).clamp_min(1e-300)
        return torch.cat([first, self.spread * first])

    def columns(self, at: Tensor) -> Tensor:
        E = self.walk(at).E.view(
            self.trajectory.schedule.epochs, -1, self.trajectory.observation.classes
        )
        return torch.cat([E.sum(0), (self._shares(at)[:, None, None] * E).sum(0)]).T

    def _shares(self, at: Tensor) -> Tensor:
        """(epochs,) how much of its move a sample has made at each visit: as much as the head has
        of its own."""
        schedule = self.trajectory.schedule
        progress = schedule.reach[:-1].sum(1)[:: len(schedule.sizes)].to(at)
        return progress / progress[-1]


def settle(trajectory: Trajectory, mean: Samples) -> Polished | None:
    """The samples' first features, from what is about their mean over all epochs; None where that
    is too much work."""
    schedule = trajectory.schedule
    counts = tuple(schedule.size(step) for step in range(schedule.steps))
    T, B = torch.cat([mean.T, torch.zeros_like(mean.T)]), mean.number
    if T.numel() > _AFFORDABLE:
        return None
    samples = Samples(counts, T, mean.labels.repeat(schedule.epochs), mean.rate)
    drifting = _Drifting(trajectory, samples, 0)
    at = drifting.start(samples)
    variance: Tensor | None = None
    for _ in range(_ROUNDS):
        at = minimized(drifting, at, 20).at
        drifting.reweighted(at)
        misfit, variance = drifting.scatter(Here(drifting, at))
        if variance is None:
            return None
        first, moves = at[:-1].view(2, B, -1)
        size = first.norm(dim=1).clamp_min(1e-300)
        spread = ((moves.square().sum(1) + variance[B:]) / size.square()).mean().sqrt()
        drifting.spread = max(float(spread), _LEAST)
    assert variance is not None
    # Where a line does not explain the movement, nothing is known beyond how far samples move at
    # all.
    systematic = drifting.spread if misfit > EXPLAINED else 0.0
    errors = (variance[:B] / size.square() + systematic**2).sqrt().nan_to_num(nan=torch.inf)
    rate = float(at[-1].exp())
    return Polished(Samples(schedule.sizes, first, mean.labels, rate), misfit, errors)
