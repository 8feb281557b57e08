"""Where pictures begin, and where they begin anew.

A sample that stands for itself begins with one color. Where BatchNorm ties the batch together, a coarse picture has other
statistics than a fine one, and everything above reads it with the wrong contrast. So statistics are held there: first the
running ones of a trained model, or those of noise whose spectrum falls as that of photos does; then those of the pictures that
were found with them, and so on. Once they agree, the batch is solved as one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.invert.pixels.descend import descend
from unsum.invert.pixels.equations import Equations
from unsum.invert.pixels.reach import PixelReach
from unsum.progress import Progress

EXPLAINED = 1e-3  # relative misfit of a map above which a picture has ended elsewhere: right ones end at rounding
_COLORS = 3  # to start from, one after another, for samples that end elsewhere
_GRAY, _SPREAD = 0.1, 0.3  # zero would do nothing: without biases it is where all ReLUs change
_ROUNDS = 8  # of held statistics
_NEAR = 0.05  # misfit from which the batch is solved as one
Found = tuple[Tensor, Tensor]  # pictures (B, c, h, w), misfits (B,)


def several_starts(
    equations: Equations, given: Tensor | None, reach: PixelReach, seed: int, progress: Progress
) -> Found:
    """The best for each sample: those that explain their map are done, the others begin with another color."""
    generator = torch.Generator().manual_seed(seed)
    B, c, like = len(reach.maps), reach.shape[0], equations.maps
    best = torch.zeros(B, *reach.shape).to(like)
    misfit = torch.full((B,), torch.inf).to(like)
    colors = [_GRAY + _SPREAD * k + 0.05 * torch.randn(B, c, 1, 1, generator=generator) for k in range(_COLORS)]
    for start in [*([] if given is None else [given]), *colors]:
        rows = (~(misfit < EXPLAINED)).nonzero()[:, 0]
        if not len(rows) or (bool(misfit.isfinite().all()) and equations.over()):
            break
        found = descend(equations.of(rows), start.to(like)[rows], reach.shape, progress)
        better = found.misfit < misfit[rows]
        best[rows[better]], misfit[rows[better]] = found.z[better], found.misfit[better]
    return best, misfit


def solve_together(
    equations: Equations, given: Tensor | None, reach: PixelReach, seed: int, progress: Progress
) -> Found:
    """The whole batch, whose statistics nobody knows."""
    like = equations.maps
    guess = given if given is not None else photo_noise(len(reach.maps), reach.shape, seed).to(like)
    pictures = torch.full((len(reach.maps), reach.shape[0], 1, 1), _GRAY).to(like)
    for number in range(_ROUNDS):
        if number > 0 or given is not None or not equations.hold_running():
            equations.hold(guess)
        pictures = descend(equations, pictures, reach.shape, progress).z
        guess = pictures = pictures / pictures.std()  # BatchNorm divides the scale out, so that it would drift
        equations.release()
        r = equations.residual(pictures)
        misfit = equations.dots(r, r).sqrt().flatten()
        if bool((misfit < _NEAR * len(misfit) ** 0.5).all()) or equations.over():
            break
    found = descend(equations, pictures, reach.shape, progress)
    return found.z, found.misfit


def best_scale(equations: Equations, pictures: Tensor) -> Tensor:
    """The pictures times what explains the maps best: BatchNorm's ε tells it, though hardly."""
    factors = [10 ** (k / 20) for k in range(-20, 21)]  # a tenth to ten times
    with torch.no_grad():
        left = [float(equations.residual(factor / pictures.std() * pictures).norm()) for factor in factors]
    return factors[left.index(min(left))] / pictures.std() * pictures


def photo_noise(B: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """(B, c, h, w) noise of mean 0 and variance 1 whose amplitude falls with the frequency, mostly gray, as in photos."""
    generator = torch.Generator().manual_seed(seed)
    c, h, w = shape
    gray, color = torch.randn(B, 1, h, w, generator=generator), torch.randn(B, c, h, w, generator=generator)
    rows, columns = torch.fft.fftfreq(h)[:, None], torch.fft.rfftfreq(w)[None]
    frequency = (rows.square() + columns.square()).sqrt().clamp_min(1 / max(h, w))
    noise = torch.fft.irfft2(torch.fft.rfft2(gray + 0.3 * color) / frequency, s=(h, w))
    return noise / noise.std()
