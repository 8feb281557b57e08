"""Pictures out of exact maps, with a claim for each: the whole method.

    minimize ‖read(x) − map‖² over the pixels x           read: what the layer reads of a picture

There is no prior and nothing is learned: where the map has more numbers than the picture, the picture is the only one that
explains it, but for what the equations do not see. What that is, the derivative at the solution tells (`judge`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from unsum.batch_statistics import BatchStatistics
from unsum.deadline import out_of_time
from unsum.errors import UnsumError
from unsum.invert.method import INVERTERS, Inverse
from unsum.invert.pixels.descend import UNTRIED, descend
from unsum.invert.pixels.equations import Equations, posed
from unsum.invert.pixels.judge import Solution, judge
from unsum.invert.pixels.reach import Reach, find_reach
from unsum.leak import Leak
from unsum.progress import SILENT, Progress
from unsum.update import Update

EXPLAINED = 1e-3  # relative misfit of a map above which a picture has ended elsewhere: right ones end at rounding
_STARTS = 3  # colors to start from, one after another, for samples that end elsewhere
_GRAY, _SPREAD = 0.1, 0.3  # zero would do nothing: without biases it is where all ReLUs change
_FINE = 1e-9  # damping once the picture is found


@dataclass(frozen=True)
class Pixels:
    """Pictures (B, c, h, w) as the model takes them, in the leak's order.

    `misfit` (B,) is what they leave of the map, relative; `errors` (B,) are predicted, relative, infinite where nothing
    determines a picture; `exact` (B,) is the certificate.
    """

    images: Tensor
    layer: str
    misfit: Tensor
    errors: Tensor
    exact: Tensor
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def solve_pixels(
    model: nn.Module,
    update: Update | None,
    leak: Leak,
    *,
    shape: tuple[int, ...] | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Pixels:
    """The pictures behind the largest map in `leak.inner`, of a model in the client's own mode, train or eval.

    `update` has the statistics that the client may have sent, and the gradient that a claim stands on; without it there is none.
    `shape` is one picture's, (channels, height, width), where the map alone does not tell it.
    """
    begun = time.perf_counter()
    reach = find_reach(model, leak, shape)
    if not reach.useful:
        raise UnsumError(
            f"The pixels are not determined: {reach.told}; train an inverse for it with "
            f"`unsum train-inverse --layer {reach.layer}`."
        )
    progress.say("Solving for the pixels")
    sent = BatchStatistics() if update is None else update.statistics
    device = next(model.parameters()).device
    with posed(model, reach.layer, reach.maps, reach.shape, sent, torch.float32) as equations:
        found, misfit = _several_starts(equations, _given(leak, reach, device), reach, seed, progress)
        solution = None if equations.together else Solution.at(equations, reach, found, misfit)
    if solution is None:
        # The scale of a batch that BatchNorm normalizes is seen through its ε alone, which float32 does not resolve.
        with posed(model, reach.layer, reach.maps, reach.shape, sent, torch.float64) as equations:
            fine = descend(equations, found.double(), reach.shape, progress, damping=_FINE)
            found, misfit = fine.z, fine.misfit
            solution = Solution.at(equations, reach, found, misfit)
    errors, exact, notes = judge(model, update, leak, solution)
    count = int((misfit < EXPLAINED).sum())
    notes = [
        f"Pixels were solved for: {reach.told}. {count} of {len(exact)} pictures explain it to {EXPLAINED:g} "
        f"(worst misfit {float(misfit.max()):.1g}), {int(exact.sum())} are certified.",
        *([] if reach.determined else ["Not every pixel is determined: finer detail than the map tells is a guess."]),
        *notes,
    ]
    return Pixels(found, reach.layer, misfit, errors, exact, notes, time.perf_counter() - begun)


@INVERTERS.register(
    "pixels", summary="least squares on pixels, nothing trained", needs="an exact map with enough numbers"
)
def pixels(model: nn.Module, leak: Leak, *, inverse: str | Path | Inverse | None) -> Tensor:
    """(B, c, h, w) as the model takes them: the pictures that explain the largest map of `leak.inner`."""
    if inverse is not None:
        raise UnsumError("The inverter 'pixels' uses no trained inverse; leave inverse= out.")
    return solve_pixels(model, None, leak).images.float()


def _given(leak: Leak, reach: Reach, device: torch.device) -> Tensor | None:
    """A learned inverse's pictures to start from, where the leak has them in the right shape."""
    if leak.images is None or tuple(leak.images.shape[1:]) != reach.shape:
        return None
    return leak.images.detach().to(device, torch.float32)


def _several_starts(
    equations: Equations, given: Tensor | None, reach: Reach, seed: int, progress: Progress
) -> tuple[Tensor, Tensor]:
    """((B, c, h, w), (B,) misfits) of the best: samples that explain their map are done, others begin with another color."""
    generator = torch.Generator().manual_seed(seed)
    B, c = len(reach.maps), reach.shape[0]
    like = equations.maps
    best = torch.zeros(B, *reach.shape, device=like.device)
    misfit = torch.full((B,), torch.inf, device=like.device)
    starts = [] if given is None else [given]
    starts += [
        (_GRAY + _SPREAD * k + 0.05 * torch.randn(B, c, 1, 1, generator=generator)).to(like) for k in range(_STARTS)
    ]
    for start in starts:
        open_ones = (~(misfit < EXPLAINED)).nonzero()[:, 0]
        rows = torch.arange(B, device=like.device) if equations.together else open_ones
        if not len(open_ones) or (bool(misfit.isfinite().all()) and out_of_time(UNTRIED)):
            break
        found = descend(equations.of(rows), start[rows], reach.shape, progress)
        better = found.misfit < misfit[rows]
        best[rows[better]], misfit[rows[better]] = found.z[better], found.misfit[better]
    return best, misfit
