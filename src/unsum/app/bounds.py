"""Ceilings while somebody waits: a few pairs of worlds at a time, kept for the next move of a
slider.

Distances of worlds do not depend on the noise. So a round that differs from an earlier one in its
noise alone goes on with the pairs that were drawn for that one.
"""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import nn

from unsum.app.order import Order
from unsum.audit.bounds import Bounds
from unsum.ceiling import Ceiling, Simulation
from unsum.defend import Defense
from unsum.defend.added import split_at_noise

SLICE = 1.5  # [s] between two figures on the page, and of what comes before the whole attack
LONGEST = 45.0  # [s] that a round's ceilings are narrowed; other pages wait for them
_KEPT = 4  # clients: each holds a copy of the model and one update


class Ceilings:
    """The clients of the last rounds, with the pairs of worlds that were drawn of each."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], Bounds] = OrderedDict()

    def of(self, model: nn.Module, order: Order, device: torch.device, seed: int) -> Narrowing:
        """Of this round's client, whatever noise it adds."""
        chain = [] if order.defense is None else [order.defense]
        truth, played = order.truth, split_at_noise(chain, len(order.keys))[0]
        key = (*order.keys, str(truth.targets.tolist()), order.train, repr(list(played)))
        if key not in self._kept:
            images, targets = truth.images.to(device), truth.targets.to(device)
            own = copy.deepcopy(model)
            self._kept[key] = Bounds(Simulation(own, images, targets, train=order.train, seed=seed))
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        bounds = self._kept[key]
        # A round that was interrupted may have left BatchNorm's statistics as they were halfway.
        bounds.case.model.load_state_dict(model.state_dict())
        return Narrowing(bounds, chain)


class Narrowing:
    """The ceiling of one round as far as it is known; None before anything was measured."""

    def __init__(self, bounds: Bounds, chain: list[Defense]) -> None:
        self._bounds, self._chain, self._seconds = bounds, chain, SLICE
        self.bound: Ceiling | None = None
        self.done = False

    @property
    def absent(self) -> str:
        """Why there is no ceiling."""
        return self._bounds.absent if self.bound is None else ""

    def further(self) -> None:
        """Draw for one slice of time; `done` once every sample is decided or nothing more helps."""
        before, start = self._pairs, time.monotonic()
        self._bounds.seconds = self._seconds
        self.bound = self._bounds(self._chain)
        self.done = self._settled or time.monotonic() - start < self._seconds
        if self._pairs == before:
            self._seconds *= 2  # a single pair takes longer here

    @property
    def _pairs(self) -> int:
        return 0 if self.bound is None else self.bound.pairs

    @property
    def _settled(self) -> bool:
        """Whether further pairs of worlds change nothing: none can be drawn, or all is decided."""
        bound, level = self.bound, self._bounds.level
        if bound is None or bound.why:
            return True
        return bool(((bound.samples < level) | (bound.lower >= level)).all())

    def narrowed(self) -> Iterator[bool]:
        """Slice by slice; whether this was the last one."""
        end = time.monotonic() + LONGEST
        last = False
        while not last:
            if not self.done:
                self.further()
            last = self.done or time.monotonic() >= end
            yield last
