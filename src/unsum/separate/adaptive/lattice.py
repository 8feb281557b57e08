"""Values on a grid: what rounding to few levels leaves behind, whoever rounded and however."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LOOKED_AT = 1 << 18  # entries that are enough to see a grid
_ENOUGH = 24  # entries other than zero below which anything looks like a grid
_FEW = 1 / 8  # distinct values per entry looked at, from which a grid is worth testing
_OFF = 0.02  # of a step, that rounding may leave a value beside its grid point
_FINEST = 1 << 16  # levels beyond which a grid is no defense


@dataclass(frozen=True)
class Lattice:
    """Entries are `origin + k · step` with whole k; a grid through zero has origin 0."""

    origin: float
    step: float

    @property
    def through_zero(self) -> bool:
        return self.origin == 0.0


def find_lattice(values: Tensor) -> Lattice | None:
    """The grid that all entries of a tensor lie on, or None."""
    seen = _some(values)
    levels = seen.unique().double()
    if int((seen != 0).sum()) < _ENOUGH or len(levels) < 2 or len(levels) > max(3, _FEW * len(seen)):
        return None
    gaps = levels.diff()
    step = _refined(gaps, float(gaps.min()))
    zero = bool((levels == 0).any()) or len(levels) <= 3
    origin = 0.0 if zero and _fits(levels, 0.0, step) else float(levels[0])
    if (levels[-1] - levels[0]) / step > _FINEST or not _fits(levels, origin, step):
        return None
    return Lattice(origin, step)


def sixteen_bits(values: Tensor) -> torch.dtype | None:
    """The sixteen-bit type that holds every entry exactly, or None; what already has sixteen bits was not cut down."""
    if values.dtype not in (torch.float32, torch.float64):
        return None
    seen = _some(values)
    seen = seen[seen != 0]
    if len(seen) < 16:
        return None
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(seen.to(dtype).to(seen.dtype), seen):
            return dtype
    return None


def _some(values: Tensor) -> Tensor:
    """Entries spread evenly over the tensor, its largest among them."""
    flat = values.detach().flatten()
    if len(flat) <= _LOOKED_AT:
        return flat
    stride = len(flat) // _LOOKED_AT | 1  # odd: no even row length hides behind it
    low, high = torch.aminmax(flat)
    return torch.cat([flat[::stride], low[None], high[None]])


def _refined(gaps: Tensor, step: float) -> float:
    """The mean step over all gaps: the smallest alone carries its own rounding."""
    counts = (gaps / step).round()
    return float(gaps.sum() / counts.sum())


def _fits(levels: Tensor, origin: float, step: float) -> bool:
    places = (levels - origin) / step
    precision = 4 * torch.finfo(torch.float32).eps * float(levels.abs().max()) / step
    return float((places - places.round()).abs().max()) < _OFF + precision and precision < 0.2
