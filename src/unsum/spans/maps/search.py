"""From many starts to every sample's mixture: Gauss–Newton with Levenberg's damping, batched; roots told apart and counted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.deadline import out_of_time
from unsum.engine.descend import damped_step
from unsum.spans.maps.condition import MapCondition

_FIRST, _LEAST, _MOST = 1e-1, 1e-12, 1e6  # of Levenberg, relative to the diagonal
_MEMORY = 1 << 24  # entries of all Jacobians together that are held at a time: 128 MB
_SAME = 2e-2  # distance, relative to size, within which two ends are one


@dataclass(frozen=True)
class Ends:
    """Where starts ended: s (S, k), their misfits (S,), and the damping (S,) they go on with."""

    s: Tensor
    misfits: Tensor
    damping: Tensor

    @classmethod
    def of(cls, s: Tensor, damping: float = _FIRST) -> Ends:
        return cls(s, s.new_full((len(s),), torch.inf), s.new_full((len(s),), damping))

    def __getitem__(self, kept: Tensor) -> Ends:
        return Ends(self.s[kept], self.misfits[kept], self.damping[kept])

    def __len__(self) -> int:
        return len(self.s)

    def joined(self, other: Ends) -> Ends:
        return Ends(*(torch.cat(both) for both in zip(vars(self).values(), vars(other).values(), strict=True)))


def descend(condition: MapCondition, ends: Ends, steps: int) -> Ends:
    """All starts, so many steps farther."""
    if condition.unknowns == 0:
        return Ends(ends.s, condition.misfit(ends.s), ends.damping)
    chunk = max(1, _MEMORY // (condition.unknowns * condition.entries))
    parts = [
        _descend(condition, ends[part], steps) for part in torch.arange(len(ends), device=ends.s.device).split(chunk)
    ]
    first = parts[0]
    for part in parts[1:]:
        first = first.joined(part)
    return first


def _descend(condition: MapCondition, ends: Ends, steps: int) -> Ends:
    s, damping = ends.s, ends.damping
    misfits = condition.misfit(s)
    for _ in range(steps):
        _, gradient, N = condition.linearized(s)
        moved = s + damped_step(gradient, N, damping)
        there = condition.misfit(moved).nan_to_num(nan=torch.inf)
        better = there < misfits
        s, misfits = torch.where(better[:, None], moved, s), torch.where(better, there, misfits)
        damping = torch.where(better, damping / 4, damping * 6).clamp(_LEAST, _MOST)
        if out_of_time("further steps to the maps"):
            break
    return Ends(s, misfits, damping)


def apart(ends: Ends) -> tuple[Tensor, Tensor]:
    """(ends that differ, the best of each, as numbers; how many starts came to each)."""
    kept: list[int] = []
    hits: list[int] = []
    sizes = 1e-12 + ends.s.norm(dim=1)
    for i in ends.misfits.argsort().tolist():
        near = ((ends.s[kept] - ends.s[i]).norm(dim=1) < _SAME * sizes[i]).nonzero()[:, 0].tolist()
        if near:
            hits[near[0]] += 1
        else:
            kept.append(i)
            hits.append(1)
    device = ends.s.device
    return torch.tensor(kept, dtype=torch.long, device=device), torch.tensor(hits, dtype=torch.long, device=device)


def beside(found: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """(number, k) starts away from the samples that were found: around their mean, in directions that none of them has."""
    k = found.shape[1]
    noise = torch.randn(number, k, generator=generator, dtype=torch.float64).to(found)
    center = found.mean(0)
    spread = found - center
    if len(found) <= k:
        directions = torch.linalg.svd(spread, full_matrices=True)[2][len(found) - 1 :]
        noise = (noise @ directions.T) @ directions
    length = spread.norm(dim=1).median().clamp_min(center.norm() / 2)
    return center + noise / noise.norm(dim=1, keepdim=True) * length
