"""A first picture by linear regression: what a patch of a map says of the pixels that it was made
of.

The model reads pictures that are drawn at random, overlapping leaves of one color each on a slope
of brightness, with noise whose spectrum falls as that of photos does. A regression learns their
pixels from what `layer` reads of them, the same at every place. That gives 15 to 20 dB, also where
BatchNorm takes its statistics of a batch that nobody knows: the drawn pictures come in batches of
the same size. Least squares on pixels converge from there.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from unsum.invert.pixels.equations import Equations, read_by
from unsum.invert.pixels.reach import PixelReach
from unsum.running.cubic import cholesky_seconds
from unsum.running.deadline import out_of_time

_KERNEL = 3  # places of the map, each way, that tell the pixels below the middle one
_ROWS = 4  # equations for each unknown of the regression
_LEAST, _MOST = 64, 1024  # pictures to learn from
# of the mean of the Gram matrix's diagonal; held-out pictures choose
_RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
_HELD_OUT = 8  # one batch of so many is for that choice
_GUESS = "a guess at the pictures by regression"
_LEAVES = 40  # in a picture, most of them covered
_SMALLEST, _LARGEST = 0.05, 0.5  # radius of a leaf, of the picture's side
_GRAIN = 0.15  # of noise, beside leaves of deviation 1


def linear_guess(equations: Equations, reach: PixelReach, seed: int) -> tuple[Tensor, float]:
    """Pictures (B, c, h, w), and the share of drawn pictures' variance that such a guess explains.

    In train mode they are of mean 0 and variance 1 over the batch, whose scale and color BatchNorm
    hides. Where time is over, the regression learns from fewer pictures; of none, it draws gray
    ones, and explains nothing.
    """
    B, sides = len(reach.maps), reach.maps.shape[2:]
    block = (max(1, round(reach.shape[1] / sides[0])), max(1, round(reach.shape[2] / sides[1])))
    size = (block[0] * sides[0], block[1] * sides[1])
    columns = _KERNEL**2 * reach.maps.shape[1] + 1
    wanted = min(max(_ROWS * columns // (sides[0] * sides[1]), _LEAST), _MOST)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(-(-wanted // B) + 1):
            pictures = drawn(B, reach.shape, seed + number).to(equations.maps)
            rows = _patches(equations.known * read_by(equations.model, equations.layer, pictures))
            yield (
                rows,
                nn.functional.unfold(_resized(pictures, size), block, stride=block)
                .transpose(1, 2)
                .flatten(0, 1),
            )

    with torch.no_grad():
        inverse, explained = _regressed(batches(), columns)
        pixels = (_patches(equations.maps).double() @ inverse).to(equations.maps)
    pictures = nn.functional.fold(
        pixels.unflatten(0, (B, -1)).transpose(1, 2), size, block, stride=block
    )
    return _resized(pictures, reach.shape[1:]), explained


def drawn(B: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """(B, c, h, w) pictures of leaves and noise, of mean 0 and variance 1 over the batch."""
    generator = torch.Generator().manual_seed(seed)
    c, h, w = shape
    y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")

    def normal(channels: int) -> Tensor:
        return torch.randn(B, channels, 1, 1, generator=generator)

    def uniform() -> Tensor:
        return torch.rand(B, 1, 1, 1, generator=generator)

    pictures = normal(c) + torch.zeros(B, c, h, w)
    for _ in range(_LEAVES):
        radius = max(h, w) * _SMALLEST * (_LARGEST / _SMALLEST) ** uniform()
        down, across = y - h * uniform(), x - w * uniform()
        angle, narrow = torch.pi * uniform(), 0.3 + 0.7 * uniform()
        along = down * angle.cos() + across * angle.sin()
        beside = (across * angle.cos() - down * angle.sin()) / narrow
        box, ellipse = (
            torch.maximum(along.abs(), beside.abs()),
            (along.square() + beside.square()).sqrt(),
        )
        inside = (radius - torch.where(uniform() > 0.5, box, ellipse)).clamp(-0.5, 0.5) + 0.5
        slope = (normal(1) * down + normal(1) * across) / h
        # photos have little color
        pictures = torch.lerp(pictures, normal(1) + 0.4 * normal(c) + slope, inside)
    pictures = pictures + _GRAIN * photo_noise(B, shape, generator)
    pictures = (
        pictures * (0.5 + uniform()) + 0.5 * normal(1) + 0.15 * normal(c)
    )  # some are darker, or have less contrast
    return (pictures - pictures.mean()) / pictures.std()


def photo_noise(B: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """(B, c, h, w) noise of mean 0 and variance 1 whose amplitude falls with the frequency, mostly
    gray, as in photos."""
    c, h, w = shape
    gray, color = (
        torch.randn(B, 1, h, w, generator=generator),
        torch.randn(B, c, h, w, generator=generator),
    )
    rows, columns = torch.fft.fftfreq(h)[:, None], torch.fft.rfftfreq(w)[None]
    frequency = (rows.square() + columns.square()).sqrt().clamp_min(1 / max(h, w))
    noise = torch.fft.irfft2(torch.fft.rfft2(gray + 0.3 * color) / frequency, s=(h, w))
    return noise / noise.std()


def _patches(maps: Tensor) -> Tensor:
    """(B h w, 9 C + 1) the patch around every place, and a one."""
    rows = nn.functional.unfold(maps, _KERNEL, padding=_KERNEL // 2).transpose(1, 2).flatten(0, 1)
    return torch.cat([rows, torch.ones_like(rows[:, :1])], 1)


def _regressed(batches: Iterator[tuple[Tensor, Tensor]], columns: int) -> tuple[Tensor, float]:
    """The matrix, in float64, that takes rows to what belongs to them, and the share of held-out
    rows that it explains."""
    held_out, gram, right = [], torch.zeros(()), torch.zeros(())
    for number, (rows, wanted) in enumerate(batches):
        if number % _HELD_OUT == 0:
            held_out.append((rows, wanted))
        else:
            gram = gram.to(rows.device) + (rows.T @ rows).double()
            right = right.to(rows.device) + (rows.T @ wanted).double()
        if out_of_time(_GUESS, needed=cholesky_seconds(columns, gram.device)):
            break

    def left(matrix: Tensor) -> float:
        return sum(
            float((rows @ matrix.to(rows) - wanted).square().sum()) for rows, wanted in held_out
        )

    best = torch.zeros(columns, held_out[0][1].shape[1]).to(held_out[0][1]).double()
    least = nothing = left(best)
    for ridge in _RIDGES if gram.ndim else ():
        if out_of_time(_GUESS, needed=cholesky_seconds(columns, gram.device)):
            break
        more = ridge * gram.diagonal().mean() * torch.eye(columns).to(gram)
        factor, failed = torch.linalg.cholesky_ex(gram + more)
        if bool(failed):  # what rounding left of products in float32 is more than this ridge
            continue
        found = torch.cholesky_solve(right, factor)
        misfit = left(found)
        if misfit < least:
            best, least = found, misfit
    return best, 1 - least / nothing


def _resized(pictures: Tensor, size: tuple[int, ...]) -> Tensor:
    same = pictures.shape[2:] == torch.Size(size)
    return (
        pictures
        if same
        else nn.functional.interpolate(pictures, size=size, mode="bilinear", align_corners=False)
    )
