"""Many gradients of one head: noise, rank and factors of all of them, as `unsum.equation` has them
of one.

Everything that is as large as a gradient happens here, in float64 and once: what follows works with
the factors alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from unsum.equation.noise import (
    ADDED_NOISE,
    LIMITS,
    LOOKED_AT,
    SKETCH,
    count_signals,
    sketch_directions,
)
from unsum.head import Head
from unsum.running.sharing import once, version

# of a matrix of products: its trace then bounds the largest eigenvalue of 100 within 8 %
_SQUARINGS = 6


@dataclass(frozen=True)
class Observations:
    """∇W = U A and K = A Wᵀ of n gradients of one rank R, as `Observation` has them of one."""

    place: Tensor  # (n,) among all gradients that were given
    U: Tensor  # (n, C, R)
    A: Tensor  # (n, R, H)
    K: Tensor  # (n, R, C)
    grad_b: Tensor  # (n, C)
    level: Tensor  # (n, C) of the noise
    weight: Tensor  # (n, C)
    beta: Tensor  # (n,)
    # (n, 2) of what the factors leave, in units of its noise: norm, and a bound of the largest
    # singular value
    rest: Tensor

    def take(self, kept: Tensor) -> Observations:
        return Observations(*(getattr(self, field.name)[kept] for field in fields(self)))


def observe_at_once(
    head: Head, grad_W: Tensor, grad_b: Tensor, sizes: list[int | None]
) -> list[Observations]:
    """By rank, those gradients (N, C, H) whose only noise is rounding in the precision of the
    model; `head` tells W and b.

    The others are for the solver that takes them one at a time. `sizes` are the batch sizes that
    are known.
    """
    C, H = grad_W.shape[1:]
    eps, wide = torch.finfo(grad_W.dtype).eps, grad_W.double()
    row_norms = torch.linalg.vector_norm(wide, dim=2)
    size = row_norms.norm(dim=1)
    rounding = 0.5 * eps * row_norms / H**0.5
    least = torch.finfo(grad_W.dtype).smallest_normal * 0.5 * eps + 0.5e-9 * eps * size
    level = torch.maximum(rounding, least[:, None])
    limit = ADDED_NOISE * level.square().mean(1).sqrt() * (C * H) ** 0.5
    plain = (size > 0) & (wide.sum(1).norm(dim=1) <= limit) & _is_fine(grad_W)
    width = min(SKETCH, H)
    sketch = wide @ sketch_directions(head, width).T / H**0.5 if width < H else wide
    picked, found = _pivots(sketch / level[:, :, None], min(width, C), min(LIMITS) * width**0.5)
    ranks = [count_signals(row, *LIMITS) for row in (found / width**0.5).tolist()]
    usable = plain.tolist()
    groups: dict[int, list[int]] = {}
    for place, (rank, known) in enumerate(zip(ranks, sizes, strict=True)):
        if usable[place] and 0 < rank < 0.75 * width and known in (None, rank):
            groups.setdefault(rank, []).append(place)
    return [
        _factored(
            head, wide, grad_b, level, picked[:, :rank], torch.tensor(places, device=wide.device)
        )
        for rank, places in groups.items()
    ]


def _is_fine(grad_W: Tensor) -> Tensor:
    """(N,) bool: whether the low bits of entries are in use, so that nothing was rounded to fewer
    digits."""
    whole = torch.int32 if grad_W.dtype == torch.float32 else torch.int64
    some = (
        grad_W.flatten(1)[:, :: max(1, grad_W[0].numel() // LOOKED_AT)]
        .contiguous()
        .view(whole)
        .cpu()
        .numpy()
    )
    return torch.from_numpy(np.bitwise_or.reduce(some, axis=1) & 1 == 1).to(grad_W.device)


def _pivots(rows: Tensor, count: int, shortest: float) -> tuple[Tensor, Tensor]:
    """(N, n) rows picked one after another, each the longest outside the span of those before, and
    their lengths."""
    rows, each = rows.clone(), torch.arange(len(rows), device=rows.device)
    picked, sizes = [], []
    for _ in range(count):
        size, index = torch.linalg.vector_norm(rows, dim=2).max(1)
        picked.append(index)
        sizes.append(size)
        if float(size.max()) < shortest:
            break
        direction = (rows[each, index] / size.clamp_min(1.0)[:, None])[:, :, None]
        rows.baddbmm_(rows @ direction, direction.mT, alpha=-1)
    return torch.stack(picked, dim=1), torch.stack(sizes, dim=1)


def _factored(
    head: Head, every: Tensor, all_b: Tensor, levels: Tensor, picked: Tensor, places: Tensor
) -> Observations:
    """U and A as `Head.factorize_rows` finds them, and what they leave of the gradient."""
    wide, level, grad_b = every[places], levels[places], all_b[places].double()
    rows = wide.gather(1, picked[places][:, :, None].expand(-1, -1, wide.shape[2]))
    A = _orthonormal_rows(rows)
    U = (wide @ A.mT) / level[:, :, None]
    inverse = torch.linalg.inv_ex(U.mT @ U)[0] @ U.mT
    A = _orthonormal_rows((inverse / level[:, None, :]) @ wide)
    U = wide @ A.mT
    K = (A.flatten(0, 1) @ wide_weights(head).T).view(len(A), -1, head.classes)
    precision = torch.finfo(head.W.dtype).eps / 2
    deviation = (level.square() + (precision * U.norm(dim=2)).square()).sqrt()
    bias_deviation = precision * grad_b.abs()
    bias_deviation = torch.maximum(
        bias_deviation, 1e-12 * bias_deviation.amax(1, keepdim=True) + 1e-300
    )
    beta = (deviation / bias_deviation).median(1).values
    rest = wide.baddbmm_(U, A, alpha=-1).div_(level[:, :, None])
    sizes = _norms(rest @ rest.mT if rest.shape[1] <= rest.shape[2] else rest.mT @ rest)
    whole = Observations(places, U, A, K, grad_b, level, 1 / deviation, beta, sizes)
    lost = ((grad_b == 0) & (U.norm(dim=2) > 0)).any(1)
    finite = torch.stack([part.flatten(1).isfinite().all(1) for part in (U, A, K)]).all(0)
    return whole.take(finite & ~lost)


def _orthonormal_rows(rows: Tensor) -> Tensor:
    """Cholesky QR twice; not finite where that fails."""
    basis = rows / rows.norm(dim=2, keepdim=True).clamp_min(1e-300)
    one = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device).expand(len(rows), -1, -1)
    for _ in range(3):
        factor, failed = torch.linalg.cholesky_ex(basis @ basis.mT)
        factor = torch.where((failed > 0)[:, None, None], torch.nan, factor)
        basis = torch.linalg.solve_triangular(factor, one, upper=False) @ basis
    return basis


def _norms(gram: Tensor) -> Tensor:
    """(n, 2) the norm behind a matrix of products, and a bound of its largest singular value:
    tr(Gᵏ)^(1/k) in place of λ."""
    trace = gram.diagonal(dim1=1, dim2=2).sum(1).clamp_min(1e-300)
    power, bound = gram / trace[:, None, None], torch.zeros_like(trace)
    for n in range(1, _SQUARINGS + 1):
        power = power @ power
        size = power.diagonal(dim1=1, dim2=2).sum(1).clamp_min(1e-300)
        power = power / size[:, None, None]
        bound = bound + size.log() / 2**n
    return torch.stack([trace.sqrt(), (trace * bound.exp()).sqrt()], dim=1)


def wide_weights(head: Head) -> Tensor:
    return once("wide", (head.W,), head.W.double, version(head.W), of_model=True)
