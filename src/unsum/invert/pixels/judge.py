"""What may be claimed of pictures that explain their maps.

1. **Predicted errors.** Noise as large as what the map was left with, sent back through the
   derivative, becomes an error of the pictures. Train-mode BatchNorm behind the first convolution
   divides the batch's own scale out of everything above, but for
   its ε: an error in that direction is taken at its worst, or as the first layer's gradients tell
       it (`contrast`).
2. **The whole gradient, computed anew.** The pictures came from one map. Every tensor that was sent
   must be what they send, but for rounding and for what the predicted errors explain; and each
   sample must be seen in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.certify.claim import FALSE_ERROR, grant_each
from unsum.certify.doubts.replay import doubt_rest
from unsum.certify.question import name_some
from unsum.engine.replay import Replay, fitted_scale, norms
from unsum.invert.pixels.descend import least_squares
from unsum.invert.pixels.equations import Equations
from unsum.invert.pixels.gradient import computing
from unsum.invert.pixels.reach import PixelReach
from unsum.leak import Leak
from unsum.update import Update

MARGIN = 5.0  # by which predicted errors may be off
# times our own rounding, the worst of three orders of summation: another machine has another
_BADLY = 10.0
_SPARE = 1.2  # equations for each unknown below which a misfit says little of the noise
# of a map: gradients in float32 tell no better
_LEAST_NOISE = float(torch.finfo(torch.float32).eps)
# sensitivity to the batch's scale, beside the mean one, below which it is named
_HIDES_SCALE = 1e-2
_PROBES = 2  # noises, of which the one that moves pictures most counts


@dataclass(frozen=True)
class Solution:
    """Pictures (B, c, h, w) in float64, their predicted relative errors (B,), and what they cannot
    tell, in words."""

    pictures: Tensor
    errors: Tensor
    notes: list[str]
    # relative error of one factor that all pictures share, where it was read by itself
    contrast: float | None = None

    @staticmethod
    def at(
        equations: Equations,
        reach: PixelReach,
        pictures: Tensor,
        misfit: Tensor,
        contrast: float | None = None,
    ) -> Solution:
        B = len(pictures)
        # noise that is not sent back to its end becomes too small an error
        unsolved = equations.over()
        if (
            unsolved
            or reach.equations < _SPARE * reach.unknowns
            or not bool((misfit < FALSE_ERROR).any())
        ):
            return Solution(
                pictures,
                torch.full((B,), torch.inf, dtype=torch.float64, device=pictures.device),
                [],
            )
        spare = 1 - reach.unknowns / reach.equations
        noise = (misfit / spare**0.5).clamp_min(_LEAST_NOISE).view(-1, 1, 1, 1)
        linear = equations.linear(lambda x: x, pictures)
        norms, own = (
            equations.dots(pictures, pictures).sqrt().clamp_min(1e-300),
            _sizes(pictures).clamp_min(1e-300),
        )
        none, tight = torch.zeros_like(norms), torch.full_like(norms, 1e-3)
        errors = torch.zeros_like(norms)
        generator = torch.Generator().manual_seed(1)
        for _ in range(_PROBES):
            u = torch.randn(linear.residual.shape, generator=generator).to(pictures)
            d = least_squares(
                equations, linear, noise * u / equations.dots(u, u).sqrt(), none, tight
            )
            if contrast is not None:
                d = d - equations.dots(pictures, d) / norms.square() * pictures
            errors = torch.maximum(errors, _sizes(d) / own)
        Ju, Jx = (linear.forward(v) for v in (d, pictures))
        usual = equations.dots(Ju, Ju).sqrt() / equations.dots(d, d).sqrt().clamp_min(1e-300)
        along = equations.dots(Jx, Jx).sqrt() / norms
        if contrast is None:
            errors = torch.maximum(errors, noise / (along * norms).clamp_min(1e-300))
        errors = torch.where(
            (misfit.view_as(errors) < FALSE_ERROR) & (not equations.over()), errors, torch.inf
        )
        notes = []
        if bool((along < _HIDES_SCALE * usual).any()):
            notes.append(
                "BatchNorm hides the scale of the whole batch, but for its ε: contrast is less "
                "sure than shapes."
            )
        return Solution(pictures, errors.flatten().double(), notes, contrast)


def judge(
    model: nn.Module, update: Update | None, leak: Leak, solution: Solution
) -> tuple[Tensor, Tensor, list[str]]:
    """(errors (B,), exact (B,), notes), with the claim granted by `certify.claim` alone."""
    errors, notes = solution.errors, list(solution.notes)
    nothing = grant_each(errors, above=False)
    whole = errors if solution.contrast is None else errors.clamp_min(solution.contrast)
    if update is None or not bool((MARGIN * errors < FALSE_ERROR).any()):
        return whole, nothing, notes
    if leak.loss != "cross-entropy" or leak.weights is not None:
        return (
            whole,
            nothing,
            [
                *notes,
                "The gradient was not replayed: the loss is not a plain mean of cross-entropies.",
            ],
        )
    replay = play(model, update, leak, solution.pictures.double(), errors)
    doubts = doubt_rest(replay)
    hidden = ~replay.shows().any(1)
    if bool(hidden.any()):
        names = name_some(hidden.nonzero()[:, 0].tolist())
        notes.append(
            f"Sample {names} would send hardly more than rounding: nothing tells that it was there."
        )
    errors = torch.where(hidden, torch.inf, errors)
    exact = grant_each(MARGIN * errors, above=replay.explains, doubts=doubts)
    if solution.contrast is not None:
        notes.append(
            f"But for one contrast that all pictures share, {int(exact.sum())} of {len(exact)} are "
            f"certain (predicted error {float(errors.max()):.1g}); the contrast is told to "
            f"{solution.contrast:.1g}."
        )
        errors = errors.clamp_min(solution.contrast)
        exact = grant_each(MARGIN * errors, above=replay.explains, doubts=doubts)
    return errors, exact, [*notes, *doubts]


def play(model: nn.Module, update: Update, leak: Leak, pictures: Tensor, errors: Tensor) -> Replay:
    """The gradient of pictures beside the one that was sent, tensor by tensor, with what each
    sample sends."""
    names = list(update.gradients)
    B, device = len(pictures), pictures.device
    weight = 1 / B if update.reduction == "mean" else 1.0
    generator = torch.Generator().manual_seed(2)
    off = torch.randn(pictures.shape, generator=generator).to(pictures)
    size = errors.clamp_max(FALSE_ERROR).to(pictures).view(-1, 1, 1, 1) * _sizes(pictures)
    off = size * off / _sizes(off)
    with computing(model, torch.float64, names) as gradient:
        targets = leak.targets.to(pictures)
        own = gradient(pictures, targets, weight)
        moved = gradient(pictures + off, targets, weight)
        parts = torch.stack([norms(gradient(pictures, targets, weight, only=i)) for i in range(B)])
    with computing(model, torch.float32, names) as gradient:
        clients = [gradient(pictures.float(), targets.float(), weight)]
        clients.append(gradient(pictures.flip(0).float(), targets.flip(0).float(), weight))
        # other ways to convolve, which round otherwise
        with torch.backends.cudnn.flags(enabled=False):
            clients.append(gradient(pictures.float(), targets.float(), weight))
    sent = [g.to(device, torch.float64) for g in update.gradients.values()]
    scale = fitted_scale(dict(zip(names, sent, strict=True)), dict(zip(names, own, strict=True)))
    apart = [norms(c.double() - o for c, o in zip(one, own, strict=True)) for one in clients]
    rounding = torch.stack(apart).amax(0)
    explained = norms([m - o for m, o in zip(moved, own, strict=True)])
    carried = torch.stack(
        [torch.finfo(g.dtype).eps * g.double().norm() for g in update.gradients.values()]
    ).to(device)
    return Replay(
        names=tuple(names),
        sent=norms(sent),
        left=norms([s - scale * o for s, o in zip(sent, own, strict=True)]),
        rounding=abs(scale) * (_BADLY * rounding + MARGIN * explained) + carried,
        parts=abs(scale) * parts,
    )


def _sizes(pictures: Tensor) -> Tensor:
    """(B, 1, 1, 1) the norm of each."""
    return pictures.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
