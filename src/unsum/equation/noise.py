"""How noisy the gradient is and how many samples stand out of that noise."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from unsum.head import Factors, Head, orthonormal_rows

FALSE_ALARM = (
    1e-3  # the one rate that statistical limits are derived from: how often a bound fails that is put to the test
)
_LOOKED_AT = 1 << 15  # entries whose low bits are looked at
_FEWEST_BITS = 7  # of a mantissa that a format keeps: bfloat16's
_SKETCH = 32  # first width of the sketch; four times as wide whenever the batch fills it
# Remainders of a row, in units of its rounding, that surely are noise, and that surely are not. A client's sums round
# more than once and may reach a few tens; a gradient rounded afterwards to fewer digits has rounded just once, and only
# the rows subtracted before may add to that.
_LIMITS, _LIMITS_COARSE = (3.0, 300.0), (7.0, 9.0)
_ADDED_NOISE = 10.0  # column sums this many times above rounding are no rounding: noise was added or entries removed


@dataclass(frozen=True)
class Noise:
    """`level` (C,): the standard deviation of one entry in each row of ∇W; `added` when it is more than rounding."""

    level: Tensor
    added: bool
    relative: float  # of the whole gradient


def unit_of(gradient: Tensor) -> float:
    """The relative distance of neighboring numbers among those that occur: 2⁻⁷ where bfloat16 came back as float32.

    Autocast, half-precision transport and quantized arithmetic leave the low bits of every entry empty.
    """
    unit: float = torch.finfo(gradient.dtype).eps
    if gradient.dtype not in (torch.float32, torch.float64):
        return unit
    whole = torch.int32 if gradient.dtype == torch.float32 else torch.int64
    some = gradient.flatten()[:: max(1, gradient.numel() // _LOOKED_AT)].contiguous().view(whole).cpu().numpy()
    used = int(np.bitwise_or.reduce(some, axis=None)) if some.size else 0
    empty = (used & -used).bit_length() - 1 if used else 0
    mantissa = 23 if gradient.dtype == torch.float32 else 52
    return unit * 2.0 ** min(empty, mantissa - _FEWEST_BITS)


def is_coarse(head: Head) -> bool:
    """Whether the gradient was rounded to fewer digits than the client computed with."""
    return unit_of(head.grad_W) > torch.finfo(head.W.dtype).eps


def rounding_of_an_entry(head: Head) -> float:
    """Relative standard deviation of one entry: half a unit in the last place where sums rounded several times.

    Rounding once afterwards is uniform within half a unit, and entries are up to twice the power of two that fixes it:
    together 0.22 units.
    """
    unit = unit_of(head.grad_W)
    return 0.22 * unit if is_coarse(head) else 0.5 * unit


def measure_noise(head: Head) -> Noise:
    """Rows of G sum to zero, so the columns of ∇W do: what they sum to instead is noise, whatever its source."""
    gradient = head.grad_W
    C, H = gradient.shape
    precision = rounding_of_an_entry(head)
    row_norms = head.row_norms(gradient)
    size = float(row_norms.norm())
    rounding = (precision * row_norms) / H**0.5
    rounding = rounding.clamp_min(torch.finfo(gradient.dtype).smallest_normal * precision + 1e-9 * precision * size)
    column_sums = head.mixed_rows(row_norms.new_ones(1, C))
    limit = _ADDED_NOISE * float(rounding.square().mean().sqrt()) * (C * H) ** 0.5
    if float(column_sums.norm()) > limit and min(C, H) > 2 * _SKETCH:
        column_sums = _outside_largest(head, column_sums, rounding)
    added = float(column_sums.norm()) / (C * H) ** 0.5
    if float(column_sums.norm()) <= limit:
        return Noise(rounding, False, precision)
    level = (rounding.square() + added**2).sqrt()
    return Noise(level, True, added * (C * H) ** 0.5 / size)


def _outside_largest(head: Head, vector: Tensor, rounding: Tensor) -> Tensor:
    """The part of a row vector (1, H) outside the largest directions of ∇W.

    Targets that do not quite sum to one, as a thousand rounded entries may, leave column sums in the span of the features;
    noise leaves them anywhere.
    """
    picked, _ = _pivots(_sketch(head, _SKETCH) / rounding[:, None], 3 * _SKETCH // 4)
    basis = orthonormal_rows(head.grad_W[picked].double())
    return vector - (vector @ basis.T) @ basis


def factorize(head: Head, noise: Noise, batch_size: int | None) -> Factors:
    """∇W = U A with as many rows in A as directions stand above the noise.

    A granted batch size caps them. Where noise was added it also replaces the count, which noise may have drowned; in a
    clean gradient a missing direction is missing indeed (equal samples, or features that depend on each other).
    """
    if noise.added:
        return head.factorize(rank=batch_size, threshold=noise_threshold(head, noise))
    rows = spanning_rows(head, noise)
    return head.factorize_rows(rows if batch_size is None else rows[:batch_size], 1 / noise.level)


def noise_threshold(head: Head, noise: Noise) -> float:
    """The singular value above which a direction is no added noise: the largest of pure noise (Marchenko–Pastur) and more."""
    C, H = head.grad_W.shape
    largest: float = 1.1 * (C**0.5 + H**0.5) * float(noise.level.square().mean().sqrt())
    return largest


def spanning_rows(head: Head, noise: Noise) -> Tensor:
    """Rows of ∇W that span its row space: pivoted projection on a random sketch, rows in units of their noise.

    The sketch keeps lengths; a row that the rows picked so far leave above its noise is a new direction. Relative to
    their own noise, classes with tiny probabilities count as much as labels do.
    """
    C, H = head.grad_W.shape
    width = min(_SKETCH, H)
    while True:
        sketch = _sketch(head, width) / noise.level[:, None]
        picked, sizes = _pivots(sketch, min(width, C))
        rank = _count_signals((sizes / width**0.5).tolist(), *_limits(head))
        if rank < 0.75 * width or width >= min(C, H):
            found: Tensor = picked[:rank]
            return found
        width = min(4 * width, C, H)


def _limits(head: Head) -> tuple[float, float]:
    return _LIMITS_COARSE if is_coarse(head) else _LIMITS


def _count_signals(sizes: list[float], noise: float, signal: float) -> int:
    """How many of the falling `sizes` are signals: between what is certain, the widest gap decides."""
    sure = sum(size > signal for size in sizes)
    possible = sum(size > noise for size in sizes)
    capped = [signal, *sizes[sure:possible], noise]
    gaps = [above / below for above, below in pairwise(capped)]
    return sure + max(range(len(gaps)), key=gaps.__getitem__)


def _sketch(head: Head, width: int) -> Tensor:
    H = head.grad_W.shape[1]
    if width >= H:
        return head.grad_W.double()
    generator = torch.Generator(device=head.grad_W.device).manual_seed(0)
    directions = torch.empty(width, H, dtype=torch.float64, device=head.grad_W.device)
    sketch: Tensor = head.projected(directions.normal_(generator=generator)) / H**0.5
    return sketch


def _pivots(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices of the rows picked one after another, each the longest outside the span of those before; its lengths."""
    picked, sizes = [], []
    for _ in range(count):
        lengths = rows.square().sum(1)
        index = lengths.argmax()
        size = lengths[index].sqrt()
        # Rows come in units of their noise. What is shorter than that must not be blown up to a direction: rounding, then
        # rounding of rounding, would return as ever new ones.
        direction = rows[index] / size.clamp_min(1.0)
        rows = rows - (rows @ direction)[:, None] * direction
        picked.append(index)
        sizes.append(size)
    return torch.stack(picked), torch.stack(sizes)
