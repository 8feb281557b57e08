"""Pictures out of exact maps, with a claim for each: the whole method.

    minimize ‖read(x) − map‖² over the pixels x           read: what the layer reads of a picture

There is no prior and nothing is learned: where the map has more numbers than the picture, the
picture is the only one that explains it, but for what the equations do not see. What that is, the
derivative at the solution tells (`judge`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from unsum.batch_statistics import BatchStatistics
from unsum.errors import UnsumError
from unsum.invert.method import INVERTERS, Inverse
from unsum.invert.pixels.contrast import told_scale
from unsum.invert.pixels.descend import polish
from unsum.invert.pixels.equations import posed
from unsum.invert.pixels.guess import drawn, linear_guess
from unsum.invert.pixels.judge import Solution, judge
from unsum.invert.pixels.photos import as_photos, errors_of_photos, on_levels, without_normalization
from unsum.invert.pixels.reach import PixelReach, find_reach
from unsum.invert.pixels.starts import EXPLAINED, best_scale, several_starts, solve_together
from unsum.leak import Leak
from unsum.models.built import Normalize
from unsum.running.progress import SILENT, Progress
from unsum.update import Update

# misfit from which a hint is left out: where a walk has lost its way, gradients are taken wrongly
_CONTRADICTED = 0.1
_LEVELED = (
    "The contrast is the one that puts every pixel on one of 256 levels, as photos have them."
)
_RESEMBLES = 0.5  # share of a picture's variance from which a guess shows what is on it


@dataclass(frozen=True)
class SolvedPixels:
    """Pictures (B, c, h, w) as the model takes them, in the leak's order.

    `misfit` (B,) is what they leave of the map, relative; `errors` (B,) are predicted, relative,
    infinite where nothing determines a picture; `exact` (B,) is the certificate.
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
    seconds: float = math.inf,
    progress: Progress = SILENT,
) -> SolvedPixels:
    """The pictures behind the largest map in `leak.inner`, of a model in the client's own mode,
    train or eval.

    `update` has the statistics that the client may have sent, and the gradient that a claim stands
    on; without it there is none. `shape` is one picture's, (channels, height, width), where the map
    alone does not tell it. After `seconds` the search ends.
    """
    bare, normalize = without_normalization(model)
    if normalize is None:
        return _solved(model, update, leak, None, shape, seed, seconds, progress)
    if leak.images is not None:
        leak = replace(leak, images=normalize(model, (leak.images,))[0])
    found = _solved(bare, update, leak, normalize, shape, seed, seconds, progress)
    return replace(found, images=as_photos(found.images, normalize))


def _solved(
    model: nn.Module,
    update: Update | None,
    leak: Leak,
    normalize: Normalize | None,
    shape: tuple[int, ...] | None,
    seed: int,
    seconds: float,
    progress: Progress,
) -> SolvedPixels:
    begun = time.perf_counter()
    end = time.monotonic() + seconds
    reach = find_reach(model, leak, shape)
    if not reach.useful:
        raise UnsumError(
            f"The pixels are not determined: {reach.told}; train an inverse for it with "
            f"`unsum train-inverse --layer {reach.layer}`."
        )
    progress.say("Solving for the pixels")
    sent = BatchStatistics() if update is None else update.statistics
    hint = None if reach.plenty else leak.hint
    like = None if hint is None else drawn(len(reach.maps), reach.shape, seed)
    with posed(model, reach.layers, torch.float32, end, hint, like) as equations:
        known = bool(equations.norms) and equations.norms.keys() <= sent.means.keys()
        start = _given(leak, reach, equations.maps.device)
        if known:
            equations.hold(torch.zeros(len(reach.maps), *reach.shape).to(equations.maps), sent)
        if equations.together:
            found, misfit = solve_together(equations, start, reach, seed, progress)
            if (
                equations.hint is not None
                and not equations.over()
                and bool((equations.misfits(found) > _CONTRADICTED).any())
            ):
                hint, equations = None, replace(equations, hint=None)
                found, misfit = solve_together(equations, found, reach, seed, progress)
        else:
            found, misfit = several_starts(equations, start, reach, seed, progress)
        unsolved = equations.ties and not equations.over()
        if not unsolved:
            solution = Solution.at(equations, reach, found, misfit)
            misfit = equations.misfits(found)
    if unsolved:
        own = equations.own
        told = None if update is None else told_scale(model, update, found, leak.targets)
        leveled = None if told is None or normalize is None else on_levels(found, told, normalize)
        told = leveled or told
        # What is left after that shows through BatchNorm's ε alone, which float32 does not resolve.
        with posed(model, reach.layers, torch.float64, end, hint, like) as equations:
            equations = replace(equations, own=own)
            near = (
                best_scale(equations, found.double())
                if told is None
                else told.factor * found.double()
            )
            fine = polish(equations, near, progress, scaled=told is not None)
            found, misfit = fine.z, fine.misfit
            solution = Solution.at(
                equations, reach, found, misfit, None if told is None else told.error
            )
            if leveled is not None:
                solution.notes.append(_LEVELED)
            misfit = equations.misfits(found)
    errors, exact, notes = judge(model, update, leak, solution)
    if normalize is not None:
        errors, exact = errors_of_photos(found, errors, exact, normalize)
    count = int((misfit < EXPLAINED).sum())
    notes = [
        f"Pixels were solved for: {reach.told}. {count} of {len(exact)} pictures explain it to "
        f"{EXPLAINED:g} (worst misfit {float(misfit.max()):.1g}), {int(exact.sum())} are "
        "certified.",
        *(
            []
            if reach.determined
            else ["Not every pixel is determined: finer detail than the map tells is a guess."]
        ),
        *notes,
    ]
    return SolvedPixels(
        found, reach.layer, misfit, errors, exact, notes, time.perf_counter() - begun
    )


def guess_pixels(model: nn.Module, leak: Leak, *, seed: int = 0) -> tuple[Tensor, str]:
    """Pictures (B, c, h, w) that a linear regression draws from a map which does not determine
    them, and what to say of them."""
    reach = find_reach(model, leak)
    if not reach.blurred:
        raise UnsumError(f"The map says too little for a picture: {reach.told}.")
    with posed(model, {reach.layer: reach.maps}, torch.float32) as equations:
        pictures, explained = linear_guess(equations, reach, seed)
    if explained < _RESEMBLES:
        raise UnsumError(
            f"A regression on what {reach.layer!r} read explains {explained:.0%} of a picture: too "
            "little."
        )
    hidden = (
        " BatchNorm hides the batch's own color and contrast from it." if equations.ties else ""
    )
    told = (
        f"{reach.told}; of pictures that were drawn at random it explains {explained:.0%} of the "
        "variance"
    )
    return pictures, f"The pictures are a guess by a linear regression: {told}.{hidden}"


@INVERTERS.register(
    "pixels",
    summary="least squares on pixels, nothing trained beforehand",
    needs="an exact map with enough numbers",
)
def pixels(model: nn.Module, leak: Leak, *, inverse: str | Path | Inverse | None) -> Tensor:
    """(B, c, h, w) as the model takes them: the pictures that explain the largest map of
    `leak.inner`."""
    if inverse is not None:
        raise UnsumError("The inverter 'pixels' uses no trained inverse; leave inverse= out.")
    return solve_pixels(model, None, leak).images.float()


def _given(leak: Leak, reach: PixelReach, device: torch.device) -> Tensor | None:
    """A learned inverse's pictures to start from, where the leak has them in the right shape."""
    if leak.images is None or tuple(leak.images.shape[1:]) != reach.shape:
        return None
    return leak.images.detach().to(device, torch.float32)
