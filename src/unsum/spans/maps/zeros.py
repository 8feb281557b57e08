"""Relu leaves zeros: samples are the sparsest maps of the next convolution's space, whatever the
norm before it did.

About half of what relu writes is zero, and a mixture of samples has fewer zeros than each of them.
So y = t Ŷ with the most zeros is a sample. Reweighted least squares finds it (Chartrand and Yin,
2008): each step is an eigenvector of a B × B matrix.

Where y is not zero, norms of channels are linear: u y = z(x) + v with u, v of each channel and z
the convolution of x. So all samples that were found tell u and x together, as the one null vector
of a linear problem; differences of places do without v.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unsum.engine.budget import Budget
from unsum.engine.found import FoundPoints
from unsum.engine.hunt import Hunt
from unsum.running.progress import SILENT
from unsum.spans.maps.condition import Affine, Among, MapCondition

_SHRINK, _FINEST = (
    0.75,
    1e-3,
)  # what counts as zero becomes smaller in each step, down to this share of the root mean square
_BELOW = 4.0  # weight of entries below zero, in units of those of a tenth of the root mean square
_ENTRIES, _EACH = 4096, 128  # that are looked at, at least, and for each unknown
_STARTS, _ROUNDS = 3, 6  # starts for each sample in a round
# distance of directions within which two ends are one: neighboring places may differ by a few
# percent
_SAME = 1e-2
_ON = 5e-2  # of the root mean square: entries that surely are not zero
_CHUNK = 1 << 24  # entries of all weighted spaces together that are held at a time: 128 MB


class SparseMaps(NamedTuple):
    """Directions y (R, E) of what the second convolution read, and how many starts came to each
    (R,)."""

    y: Tensor
    hits: Tensor


class BegunMaps(NamedTuple):
    """Samples s (R, k) to begin with, the sign of the origin, and the norm that they show, up to a
    factor."""

    s: Tensor
    sign: int
    affine: Affine
    hits: Tensor


def begin(condition: MapCondition, samples: int, seed: int) -> BegunMaps | None:
    """Samples of a batch whose norm is not known; None where relu does not follow, or too few
    show."""
    space = condition.space
    if (
        not has_zeros(condition, samples)
        or condition.norm is not None
        or not isinstance(space, Among)
    ):
        return None
    found = sparsest(space.rows, samples, torch.Generator().manual_seed(seed))
    if len(found.y) < 2:
        return None
    return _linear(condition, found)


def starts(condition: MapCondition, samples: int, generator: torch.Generator) -> Tensor:
    """(R, k) samples that zeros show; their lengths are told by the norm, which is known, where
    they are on."""
    space, affine = condition.space, condition.affine
    assert isinstance(space, Among)
    slopes, constant = condition.K, condition.c
    if affine is not None:
        slopes, constant = (
            slopes * affine.scale[:, None],
            constant * affine.scale[:, None] + affine.shift[:, None],
        )
    found = []
    for y in sparsest(space.rows, samples, generator).y:
        on = (y > _ON * y.square().mean().sqrt()).to(y)
        columns = torch.cat([slopes.flatten(1), -y[None]]) * on  # s K + c = length · y
        found.append(
            torch.linalg.lstsq(columns.T, -(constant.flatten() * on)[:, None]).solution[:-1, 0]
        )
    return torch.stack(found) if found else slopes.new_zeros(0, condition.unknowns)


def has_zeros(condition: MapCondition, samples: int) -> bool:
    """Whether the next convolution's maps show samples by their zeros."""
    space = condition.space
    if condition.activation.family != "relu" or not isinstance(space, Among):
        return False
    return condition.unknowns > 0 and len(space.rows) == samples


def sparsest(rows: Tensor, samples: int, generator: torch.Generator) -> SparseMaps:
    """The sparsest non-negative mixtures of orthonormal rows (B, E), at most so many as samples."""
    E = rows.shape[1]
    some = torch.randperm(E, generator=generator)[: max(_ENTRIES, _EACH * len(rows))].to(
        rows.device
    )
    seen = rows[:, some].contiguous()
    budget = Budget(rounds=_ROUNDS, barren=_ROUNDS, idle=math.inf, same=_SAME)
    hunt = _Sparsest(samples, budget, "further zeros of the maps", SILENT, seen, generator)
    found = hunt.run(FoundPoints.unranked(rows.new_zeros(0, len(rows))))
    most = found[found.hits.argsort(descending=True)[:samples]]
    return SparseMaps(_reweighted(rows, most.points, _FINEST) @ rows, most.hits)


@dataclass
class _Sparsest(Hunt[FoundPoints]):
    """Directions of sparse mixtures of `seen` (B, E), from its columns."""

    seen: Tensor
    generator: torch.Generator

    def round(self, found: FoundPoints, barren: int) -> FoundPoints:  # noqa: ARG002
        E, number = self.seen.shape[1], _STARTS * self.wanted
        drawn = torch.randint(E, (number,), generator=self.generator).to(self.seen.device)
        start = self.seen[:, drawn].T
        known = (found if len(found) < self.wanted else found[found.hits > 1]).points
        if len(known):  # what those that were found do not have
            known = torch.linalg.qr(known.T)[0]
            start = start - (start @ known) @ known.T
        return FoundPoints.unranked(_reweighted(self.seen, F.normalize(start)))

    def complete(self, found: FoundPoints) -> bool:
        return len(found) >= self.wanted and bool((found.hits[: self.wanted] > 1).all())


def _reweighted(rows: Tensor, t: Tensor, first: float = 1.0) -> Tensor:
    """(S, B) sparse mixtures near those of t."""
    E = rows.shape[1]
    chunk = max(1, _CHUNK // rows.numel())
    parts = []
    for part in t.split(chunk):
        zero = first
        while True:
            y = part @ rows
            y = y * (E**0.5 / y.norm(dim=1, keepdim=True).clamp_min(1e-300))
            weight = (y.square() + zero**2).reciprocal()
            weight = torch.where(y < 0, weight.clamp_min(_BELOW) * _BELOW, weight)
            gram = (rows[None] * weight[:, None]) @ rows.T
            part = torch.linalg.eigh(gram.cpu())[1][:, :, 0].to(
                rows
            )  # a GPU takes ten times as long for many small ones
            part = part * (part @ rows).sum(1, keepdim=True).sign()
            if zero <= _FINEST:
                break
            zero = max(zero * _SHRINK, _FINEST)
        parts.append(part)
    return torch.cat(parts)


def _linear(condition: MapCondition, found: SparseMaps) -> BegunMaps | None:
    """The null vector: u of every channel, and every sample in the coordinates (origin, maps)."""
    K = torch.cat([condition.c[None], condition.K])
    C = K.shape[1]
    y = found.y.unflatten(1, (C, -1))
    on = y > _ON * y.square().mean((1, 2), keepdim=True).sqrt()
    Q, size = K.new_zeros(C, C), K.new_zeros(C)
    solved = []
    for one, lit in zip(y, on.to(K), strict=True):
        count = lit.sum(1, keepdim=True).clamp_min(1)
        rest = (one - (one * lit).sum(1, keepdim=True) / count) * lit
        J = (K - (K * lit).sum(2, keepdim=True) / count) * lit
        cross = (J * rest).sum(2)
        inverse = torch.linalg.pinv(torch.einsum("bcp,dcp->bd", J, J), hermitian=True) @ cross
        Q -= cross.T @ inverse
        size += rest.square().sum(1)
        solved.append(inverse)
    shown = size > 1e-9 * size.max()
    if not bool(shown.any()):
        return None
    Q, unit = Q[shown][:, shown], size[shown].rsqrt()
    Q = unit[:, None] * Q * unit
    Q.diagonal().add_(1)
    u = K.new_zeros(C)
    u[shown] = torch.linalg.eigh(Q)[1][:, 0] * unit
    assert condition.batch is not None
    u = u * (u * condition.batch.gamma.sign()).sum().sign()
    T = torch.stack([inverse @ u for inverse in solved])
    sign = 1 if float(T[:, 0].sum()) > 0 else -1
    lengths = T[:, :1].abs().clamp_min(1e-300)
    s = T[:, 1:] / lengths
    written = torch.tensordot(s, condition.K, 1) + sign * condition.c
    shift = ((y * u[:, None] / lengths[:, :, None] - written) * on).sum((0, 2)) / on.sum(
        (0, 2)
    ).clamp_min(1)
    scale = torch.where(u.abs() > 0, u.reciprocal(), 0.0)
    return BegunMaps(s, sign, Affine(scale, shift * scale), found.hits)
