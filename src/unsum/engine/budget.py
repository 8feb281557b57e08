"""How far one search goes: one object, passed in, instead of constants in every module."""

from __future__ import annotations

import math
from dataclasses import dataclass

# [entries] of all Jacobians together that are held at a time, 256 MB and 2 GB of float64.
# Chosen by: arbitrary budget.
_HELD = {"cpu": 1 << 25, "cuda": 1 << 28}
# [s] of computing without a new sample, after which a search ends. Chosen by: arbitrary budget.
PATIENCE = 8.0


@dataclass(frozen=True)
class Budget:
    """The limits of a descent, and of a search that makes many; the defaults suit a solution to all
    digits from one good start.

    Every default is an arbitrary budget unless a comment names another origin.
    """

    steps: int = 100  # [steps] of a start at most
    damping: float = 1e-3  # [of the normal matrix's diagonal] in the first step
    stalled: float = 0.999  # [of the cost] a step that keeps more of it has stalled
    patience: int = 3  # [steps] in a row that stall, after which a start has ended
    refusals: int = 60  # [steps] in a row that would raise the cost, after which it has ended
    halvings: int = 0  # [halvings] of a step that would raise the cost, before it is refused
    trial: int | None = None  # [steps] after which a start that is not near is discarded
    near: float = 0.15  # [residual norm] below which a start is near a root
    seconds: float = math.inf  # [s] after which no further step begins
    memory: int | None = None  # [entries] of Jacobians at a time; by default the device decides
    rounds: int = 10_000  # [rounds] of starts at most
    barren: int = 4  # [rounds] in a row without a gain, after which a search ends
    idle: float | None = None  # [s] of computing without a gain; by default `PATIENCE`
    # [relative distance] within which two points are one. Far above the rounding of float32
    # gradients, and far below the distance of two samples.
    same: float = 1e-4
    blur: float = 10.0  # [predicted errors] by which two readings of one point may differ besides

    @property
    def patient_seconds(self) -> float:
        """Seconds of computing without a gain, after which a search ends."""
        return PATIENCE if self.idle is None else self.idle

    def at_once(self, entries: int, device: str) -> int:
        """The number of starts at a time, where the Jacobian of each has so many entries."""
        held = _HELD.get(device, _HELD["cpu"]) if self.memory is None else self.memory
        return max(1, held // max(1, entries))
