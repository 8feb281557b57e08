"""Ends of starts told apart and counted, and further starts away from what was found."""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.engine.descend import Descent
from unsum.engine.found import FoundPoints

# [of its size] distance within which two ends are one. Chosen by: arbitrary margin.
SAME = 2e-2


def apart(ends: Descent) -> FoundPoints:
    """Ends that differ, the best of each, and how many starts came to it."""
    return FoundPoints.of(ends.s, torch.zeros_like(ends.cost), ends.misfit).distinct(SAME)


def beside(found: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """(number, k) starts away from the samples that were found: around their mean, in directions
    that none of them has."""
    k = found.shape[1]
    noise = torch.randn(number, k, generator=generator, dtype=torch.float64).to(found)
    center = found.mean(0)
    spread = found - center
    if len(found) <= k:
        directions = torch.linalg.svd(spread, full_matrices=True)[2][len(found) - 1 :]
        noise = (noise @ directions.T) @ directions
    length = spread.norm(dim=1).median().clamp_min(center.norm() / 2)
    return center + noise / noise.norm(dim=1, keepdim=True) * length
