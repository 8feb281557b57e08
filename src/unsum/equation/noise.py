"""How noisy the gradient is, how many samples stand out of that noise, and the weight decay that
looks like it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from unsum.head import Factors, Head, orthonormal_rows
from unsum.running.sharing import once

# How often a bound may fail that is put to the test. Limits that are quantiles are derived from it;
# those in whole deviations (3 in `certify`: 1.3e-3 of a Gaussian; more where errors are no
# Gaussians) are chosen.
FALSE_ALARM = 1e-3
LOOKED_AT = 1 << 15  # entries whose low bits are looked at
_FEWEST_BITS = 7  # of a mantissa that a format keeps: bfloat16's
SKETCH = 32  # first width of the sketch; four times as wide whenever the batch fills it
# Remainders of a row, in units of its rounding, that surely are noise, and that surely are not. A
# client's sums round more than once and may reach a few tens; a gradient rounded afterwards to
# fewer digits has rounded just once, and only the rows subtracted before may add to that.
LIMITS, _LIMITS_COARSE = (3.0, 300.0), (7.0, 9.0)
# column sums this many times above rounding are no rounding: noise was added or entries removed
ADDED_NOISE = 10.0
_SEVERAL_ROUNDINGS = 3.0  # deviations: optimizers round more than once
_WITNESSES = 8  # columns below which sums may be proportional by chance
_DECAY_LEAVES = 1e-2  # of the sums that λW must leave at most
_LARGEST_DECAY = 1e2  # λ of no optimizer


@dataclass(frozen=True)
class Noise:
    """`level` (C,): the standard deviation of one entry in each row of ∇W; `added` when it is more
    than rounding."""

    level: Tensor
    added: bool
    relative: float  # of the whole gradient


def unit_of(gradient: Tensor) -> float:
    """The relative distance of neighboring numbers among those that occur: 2⁻⁷ where bfloat16 came
    back as float32.

    Autocast, half-precision transport and quantized arithmetic leave the low bits of every entry
    empty.
    """
    unit: float = torch.finfo(gradient.dtype).eps
    if gradient.dtype not in (torch.float32, torch.float64):
        return unit
    whole = torch.int32 if gradient.dtype == torch.float32 else torch.int64
    some = (
        gradient.flatten()[:: max(1, gradient.numel() // LOOKED_AT)]
        .contiguous()
        .view(whole)
        .cpu()
        .numpy()
    )
    used = int(np.bitwise_or.reduce(some, axis=None)) if some.size else 0
    empty = (used & -used).bit_length() - 1 if used else 0
    mantissa = 23 if gradient.dtype == torch.float32 else 52
    return unit * 2.0 ** min(empty, mantissa - _FEWEST_BITS)


def is_coarse(head: Head) -> bool:
    """Whether the gradient was rounded to fewer digits than the client computed with."""
    return unit_of(_sent(head)) > torch.finfo(head.W.dtype).eps


def _sent(head: Head) -> Tensor:
    return head.grad_W if head.sent_W is None else head.sent_W


def rounding_of_an_entry(head: Head) -> float:
    """Relative standard deviation of one entry: half a unit in the last place where sums rounded
    several times.

    Rounding once afterwards is uniform within half a unit, and entries are up to twice the power of
    two that fixes it: together 0.22 units.
    """
    unit = unit_of(_sent(head))
    return 0.22 * unit if is_coarse(head) else 0.5 * unit


def rounding_of_weights(head: Head) -> float:
    """The standard deviation that a change of weights has from their own rounding, in the
    gradient's units; 0 of a gradient.

    after = before − η g is rounded to the nearest number that W's type holds: uniform within half a
    unit in the last place.
    """
    if head.divisor is None:
        return 0.0
    _, exponents = head.W.double().frexp()
    units = torch.finfo(head.W.dtype).eps * torch.exp2(exponents.double() - 1).masked_fill(
        head.W == 0, 0.0
    )
    return float(units.square().mean().div(12).sqrt()) / head.divisor


def is_rounding_of_weights(head: Head, sigma: float) -> bool:
    """Whether noise of this size is what rounded weights leave in their difference."""
    return sigma < _SEVERAL_ROUNDINGS * rounding_of_weights(head)


def measure_noise(head: Head) -> Noise:
    """Rows of G sum to zero, so the columns of ∇W do: what they sum to instead is noise, whatever
    its source."""
    return once("noise", (head,), lambda: _measured_noise(head))


def _measured_noise(head: Head) -> Noise:
    gradient = head.grad_W
    C, H = gradient.shape
    precision = rounding_of_an_entry(head)
    row_norms = head.row_norms(gradient)
    size = float(row_norms.norm())
    sent_norms = row_norms if head.sent_W is None else head.row_norms(head.sent_W)
    rounding = (precision * sent_norms) / H**0.5
    rounding = rounding.clamp_min(
        torch.finfo(gradient.dtype).smallest_normal * precision + 1e-9 * precision * size
    )
    column_sums = head.column_sums()[None]
    limit = ADDED_NOISE * float(rounding.square().mean().sqrt()) * (C * H) ** 0.5
    if float(column_sums.norm()) > limit and min(C, H) > 2 * SKETCH:
        column_sums = _outside_largest(head, column_sums, rounding)
    added = float(column_sums.norm()) / (C * H) ** 0.5
    if float(column_sums.norm()) <= limit:
        return Noise(
            rounding,
            False,
            precision * float(sent_norms.norm()) / size if head.sent_W is not None else precision,
        )
    level = (rounding.square() + added**2).sqrt()
    return Noise(level, True, added * (C * H) ** 0.5 / size)


def _outside_largest(head: Head, vector: Tensor, rounding: Tensor) -> Tensor:
    """The part of a row vector (1, H) outside the largest directions of ∇W.

    Targets that do not quite sum to one, as a thousand rounded entries may, leave column sums in
    the span of the features; noise leaves them anywhere. Noise loses a share there, which is made
    up for: taken for smaller than it is, it would pass for samples. It keeps all of the C − k rows
    left, and of the k rows picked what samples, whose sums are 0, share with them.
    """
    picked, _ = _pivots(_sketch(head, SKETCH) / rounding[:, None], 3 * SKETCH // 4)
    rows, (C, H), k = head.grad_W[picked].double(), head.grad_W.shape, len(picked)
    basis = orthonormal_rows(rows)
    outside = (vector - (vector @ basis.T) @ basis) / (1 - k / H) ** 0.5
    most = float(outside.norm()) / ((C - k) * H) ** 0.5
    left, values, _ = torch.linalg.svd(rows, full_matrices=False)
    common = float(left[:, values > _largest_of_noise(k, H, most)].sum(0).square().sum())
    return outside / ((C - k + common) / C) ** 0.5


def _largest_of_noise(rows: int, columns: int, level: float) -> float:
    """A singular value that pure noise does not reach (Marchenko–Pastur, and a little more)."""
    return 1.1 * float(rows**0.5 + columns**0.5) * level


def factorize(head: Head, noise: Noise, batch_size: int | None) -> Factors:
    """∇W = U A with as many rows in A as directions stand above the noise.

    A granted batch size caps them. Where noise was added it also replaces the count, which noise
    may have drowned; in a clean gradient a missing direction is missing indeed (equal samples, or
    features that depend on each other).
    """
    return once("factors", (head, noise), lambda: _factorized(head, noise, batch_size), batch_size)


def _factorized(head: Head, noise: Noise, batch_size: int | None) -> Factors:
    if noise.added:
        largest = _largest_of_noise(
            head.classes, head.grad_W.shape[1], float(noise.level.square().mean().sqrt())
        )
        return head.factorize(rank=batch_size, threshold=largest)
    rows = spanning_rows(head, noise)
    return head.factorize_rows(rows if batch_size is None else rows[:batch_size], 1 / noise.level)


def spanning_rows(head: Head, noise: Noise) -> Tensor:
    """Rows of ∇W that span its row space: pivoted projection on a random sketch, rows in units of
    their noise.

    The sketch keeps lengths; a row that the rows picked so far leave above its noise is a new
    direction. Relative to their own noise, classes with tiny probabilities count as much as labels
    do.
    """
    C, H = head.grad_W.shape
    width = min(SKETCH, H)
    while True:
        sketch = _sketch(head, width) / noise.level[:, None]
        limits = _LIMITS_COARSE if is_coarse(head) else LIMITS
        picked, sizes = _pivots(sketch, min(width, C), shortest=min(limits) * width**0.5)
        rank = count_signals((sizes / width**0.5).tolist(), *limits)
        if rank < 0.75 * width or width >= min(C, H):
            return picked[:rank]
        width = min(4 * width, C, H)


def count_signals(sizes: list[float], noise: float, signal: float) -> int:
    """How many of the falling `sizes` are signals: between what is certain, the widest gap
    decides."""
    sure = sum(size > signal for size in sizes)
    possible = sum(size > noise for size in sizes)
    capped = [signal, *sizes[sure:possible], noise]
    gaps = [above / below for above, below in pairwise(capped)]
    return sure + max(range(len(gaps)), key=gaps.__getitem__)


def _sketch(head: Head, width: int) -> Tensor:
    H = head.grad_W.shape[1]
    if width >= H:
        return head.grad_W.double()
    return head.projected(sketch_directions(head, width)) / H**0.5


def sketch_directions(head: Head, width: int) -> Tensor:
    """(width, H) random ones, the same for every gradient of this head."""

    def made() -> Tensor:
        generator = torch.Generator(device=head.W.device).manual_seed(0)
        directions = torch.empty(width, head.W.shape[1], device=head.W.device)
        return directions.normal_(generator=generator).double()  # faster than drawn in float64

    return once("sketch", (head.W,), made, width, of_model=True)


def _pivots(rows: Tensor, count: int, shortest: float = 0.0) -> tuple[Tensor, Tensor]:
    """Indices of the rows picked one after another, each the longest outside the span of those
    before; its lengths.

    Lengths never grow, so the first that is under `shortest` is the last that is asked for.
    """
    # changed in place: a matrix of this size for every row picked costs more than the products
    rows = rows.clone()
    picked, sizes = [], []
    for _ in range(count):
        lengths = torch.linalg.vector_norm(rows, dim=1)
        size, index = lengths.max(0)
        picked.append(index)
        sizes.append(size)
        if float(size) < shortest:
            break
        # Rows come in units of their noise. What is shorter than that must not be blown up to a
        # direction: rounding, then rounding of rounding, would return as ever new ones.
        direction = rows[index] / size.clamp_min(1.0)
        rows.addr_(rows @ direction, direction, alpha=-1)
    return torch.stack(picked), torch.stack(sizes)


def without_decay(head: Head) -> tuple[Head, float, Noise] | None:
    """The head with its gradient less λW, λ, and the noise, which the rounding of g + λW has part
    in; None where none is seen.

    A client that decays its weights sends g + λW, and g's columns sum to zero. So the columns of
    what it sent sum to λ times those of W, which gives λ at once: λ = ⟨1ᵀW, 1ᵀ(g + λW)⟩ / ‖1ᵀW‖².
    """
    C, H = head.W.shape
    if H < _WITNESSES or not measure_noise(head).added:
        return None
    sums, of_weights = (matrix.sum(0, dtype=torch.float64) for matrix in (head.grad_W, head.W))
    size = float(of_weights.square().sum())
    decay = float(sums @ of_weights) / size if size > 0 else 0.0
    left = float((sums - decay * of_weights).norm())
    if not 0 < abs(decay) < _LARGEST_DECAY or left > _DECAY_LEAVES * float(sums.norm()):
        return None
    grad_W, grad_b = head.grad_W.double() - decay * head.W.double(), head.grad_b
    # many optimizers spare the bias: its own sum tells
    if head.grad_b is not None and head.b is not None:
        spared, decayed = head.grad_b.double(), head.grad_b.double() - decay * head.b.double()
        grad_b = spared if float(spared.sum().abs()) <= float(decayed.sum().abs()) else decayed
    clean = replace(head, grad_W=grad_W, grad_b=grad_b)
    rounding = rounding_of_an_entry(head) * head.row_norms(head.grad_W) / H**0.5
    before = replace(
        measure_noise(replace(clean, grad_W=clean.grad_W.to(head.grad_W.dtype))), added=False
    )
    level = (before.level.square() + rounding.square()).sqrt()
    if left / (C * H) ** 0.5 > 10 * float(level.square().mean().sqrt()):  # there is noise besides
        return None
    relative = float(rounding.norm() * H**0.5) / float(clean.grad_W.norm())
    return clean, decay, Noise(level, False, max(relative, before.relative))
