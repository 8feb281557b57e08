"""Where pictures begin, and where they begin anew.

They begin with the guess of a linear regression. A sample that stands for itself may begin anew
with one color, and coarse. Where BatchNorm ties the batch together, a coarse picture has other
statistics than a fine one, and everything above reads it with the wrong contrast.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.invert.pixels.descend import descend
from unsum.invert.pixels.equations import Equations
from unsum.invert.pixels.guess import linear_guess
from unsum.invert.pixels.reach import PixelReach
from unsum.running.progress import Progress

# relative misfit of a map above which a picture has ended elsewhere: right ones end at rounding
EXPLAINED = 1e-3
_SAME = 1e-2  # relative difference of two misfits up to which two starts have ended at one picture
_COLORS = 3  # to start from, one after another, for samples that end elsewhere
_GRAY, _SPREAD = 0.1, 0.3  # zero would do nothing: without biases it is where all ReLUs change
Found = tuple[Tensor, Tensor]  # pictures (B, c, h, w), misfits (B,)


def several_starts(
    equations: Equations, given: Tensor | None, reach: PixelReach, seed: int, progress: Progress
) -> Found:
    """The best for each sample: those that explain their map are done, the others begin with
    another color."""
    generator = torch.Generator().manual_seed(seed)
    B, c, like = len(reach.maps), reach.shape[0], equations.maps
    best = torch.zeros(B, *reach.shape).to(like)
    misfit = torch.full((B,), torch.inf).to(like)
    colors = [
        _GRAY + _SPREAD * k + 0.05 * torch.randn(B, c, 1, 1, generator=generator)
        for k in range(_COLORS)
    ]
    first = linear_guess(equations, reach, seed)[0] if given is None else given
    done = misfit < EXPLAINED
    for start in [first, *colors]:
        rows = (~done).nonzero()[:, 0]
        if not len(rows) or (bool(misfit.isfinite().all()) and equations.over()):
            break
        found = descend(equations.of(rows), start.to(like)[rows], reach.shape, progress)
        same = (found.misfit - misfit[rows]).abs() < _SAME * misfit[
            rows
        ]  # as good, from elsewhere: it is the map that errs
        better = found.misfit < misfit[rows]
        best[rows[better]], misfit[rows[better]] = found.z[better], found.misfit[better]
        done[rows] = same | (misfit[rows] < EXPLAINED)
    return best, misfit


def solve_together(
    equations: Equations, given: Tensor | None, reach: PixelReach, seed: int, progress: Progress
) -> Found:
    """The whole batch as one problem. Where nobody knows its statistics, pictures make their own,
    up to a scale."""
    start = linear_guess(equations, reach, seed)[0] if given is None else given
    found = descend(
        equations, start / start.std() if equations.ties else start, reach.shape, progress
    )
    return found.z, found.misfit


def best_scale(equations: Equations, pictures: Tensor) -> Tensor:
    """The pictures times what explains the maps best: BatchNorm's ε tells it, though hardly."""
    factors = [10 ** (k / 20) for k in range(-20, 21)]  # a tenth to ten times
    with torch.no_grad():
        left = [
            float(equations.residual(factor / pictures.std() * pictures).norm())
            for factor in factors
        ]
    return factors[left.index(min(left))] / pictures.std() * pictures
