"""How noisy the gradient is and how many samples stand out of that noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import Factors, Head

_ADDED_NOISE = 10.0  # column sums this many times above rounding are no rounding: noise was added or entries removed


@dataclass(frozen=True)
class Noise:
    """`level` (C,): the standard deviation of one entry in each row of ∇W; `added` when it is more than rounding."""

    level: Tensor
    added: bool
    relative: float  # of the whole gradient


def measure_noise(head: Head) -> Noise:
    """Rows of G sum to zero, so the columns of ∇W do: what they sum to instead is noise, whatever its source."""
    gradient = head.grad_W
    C, H = gradient.shape
    precision = torch.finfo(gradient.dtype).eps / 2
    row_norms = torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64)
    size = float(row_norms.norm())
    rounding = (precision * row_norms) / H**0.5
    rounding = rounding.clamp_min(torch.finfo(gradient.dtype).smallest_normal * precision + 1e-9 * precision * size)
    added = float(gradient.sum(0, dtype=torch.float64).norm()) / (C * H) ** 0.5
    if added <= _ADDED_NOISE * float(rounding.square().mean().sqrt()):
        return Noise(rounding, False, precision)
    level = (rounding.square() + added**2).sqrt()
    return Noise(level, True, added * (C * H) ** 0.5 / size)


def factorise(head: Head, noise: Noise, batch_size: int | None) -> Factors:
    """∇W = U A with as many rows in A as directions stand above the noise.

    A granted batch size caps them. Where noise was added it also replaces the count, which noise may have drowned; in a
    clean gradient a missing direction is missing indeed (equal samples, or features that depend on each other).
    """
    C, H = head.grad_W.shape
    edge = C**0.5 + H**0.5  # largest singular value of pure noise of level 1 (Marchenko–Pastur)
    # Rounding is not quite random, and the Gram matrix itself ends at 1e-8 of the largest singular value.
    threshold = 1.1 * edge if noise.added else max(4 * edge, 1.5e-7 * (C * H) ** 0.5 / noise.relative)
    rank = batch_size if noise.added else None
    factors = head.factorise(rank=rank, threshold=threshold, row_weight=1 / noise.level)
    if batch_size is not None and factors.A.shape[0] > batch_size:
        return head.factorise(rank=batch_size, row_weight=1 / noise.level)
    return factors
