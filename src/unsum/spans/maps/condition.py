"""Samples as roots: a mixture of maps is a sample where what the next convolution reads lies among
its maps.

x = s X̂ (or origin + s X̂), y = activation(norm(conv x)), and y must lie in the space that the next
convolution's gradient gives: of maps, or, for a 1×1 convolution, of single places. Thousands of
equations for a few unknowns: a search looks at some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from unsum.engine.descend import ROUNDING, NonlinearProblem, Normal
from unsum.head import orthonormal_rows
from unsum.network.activations import Activation

_DEAD = 1e-12  # size of a map of which nothing passes the activation: no sample


@dataclass(frozen=True)
class Affine:
    """What BatchNorm does with given statistics: scale · z + shift, channel by channel (C,)."""

    scale: Tensor
    shift: Tensor


@dataclass(frozen=True)
class BatchNormed:
    """BatchNorm in train mode: γ, β (C,) and the eps of its variance; what it does depends on the
    whole batch."""

    gamma: Tensor
    beta: Tensor
    eps: float

    def of(self, written: Tensor) -> Affine:
        """With the statistics of all samples, whose convolution wrote (B, C, P)."""
        mean = written.mean((0, 2))
        variance = (written - mean[:, None]).square().mean((0, 2))
        scale = self.gamma * (variance + self.eps).rsqrt()
        return Affine(scale, self.beta - mean * scale)


@dataclass(frozen=True)
class Among:
    """Maps that are mixtures of `rows` (B, E), orthonormal."""

    rows: Tensor

    @classmethod
    def of(cls, maps: Tensor) -> Among:
        return cls(orthonormal_rows(maps.flatten(1)))

    def core(self, a: Tensor) -> Tensor:
        """What of (…, E) is asked about: all."""
        return a

    def outside(self, a: Tensor) -> Tensor:
        """The part of (…, E) that is no mixture."""
        return a - (a @ self.rows.T) @ self.rows

    def back(self, rest: Tensor) -> Tensor:
        """What is outside, as entries again."""
        return rest

    def gram(self, J: Tensor) -> Tensor:
        """(S, k, k) products of the parts of J (S, k, E) that are no mixtures."""
        within = J @ self.rows.T
        return J @ J.mT - within @ within.mT


@dataclass(frozen=True)
class Places:
    """Maps whose every place lies in a space of channels; `beyond` (M, C) is the rest of them.
    `centered`: less their mean."""

    beyond: Tensor
    centered: bool

    @classmethod
    def of(cls, rows: Tensor, *, centered: bool) -> Places:
        whole = torch.linalg.qr(rows.T, mode="complete")[0]
        return cls(whole[:, len(rows) :].T.contiguous(), centered)

    def core(self, a: Tensor) -> Tensor:
        """What of (…, E) is asked about: how places differ, where nothing else is known."""
        maps = a.unflatten(-1, (self.beyond.shape[1], -1))
        return (maps - maps.mean(-1, keepdim=True)).flatten(-2) if self.centered else a

    def outside(self, a: Tensor) -> Tensor:
        """(…, E) → (…, places · M), by one large product."""
        places = a.unflatten(-1, (self.beyond.shape[1], -1)).mT.contiguous()
        outside = places.flatten(0, -2) @ self.beyond.T
        return outside.view(*places.shape[:-1], len(self.beyond)).flatten(-2)

    def back(self, rest: Tensor) -> Tensor:
        """What is outside, (…, places · M), as entries (…, E) again."""
        places = rest.unflatten(-1, (-1, len(self.beyond)))
        return (places.flatten(0, -2) @ self.beyond).view(*places.shape[:-1], -1).mT.flatten(-2)

    def gram(self, J: Tensor) -> Tensor:
        """(S, k, k) products of the parts of J (S, k, E) that lie beyond."""
        rest = self.outside(J)
        return rest @ rest.mT


@dataclass(frozen=True)
class MapCondition(NonlinearProblem):
    """z = s K + c for unknowns s (S, k): K (k, C, P), c (C, P), of the places that are looked at.

    `norm` is a module that mixes places or channels (GroupNorm, say); it needs all places. `affine`
    is BatchNorm's, with statistics that are known, or those of `batch` for some samples.
    """

    K: Tensor
    c: Tensor
    activation: Activation
    space: Among | Places
    affine: Affine | None = None
    batch: BatchNormed | None = None
    norm: Callable[[Tensor], Tensor] | None = None
    # where not all places are looked at: statistics are of all
    everywhere: MapCondition | None = None

    @property
    def unknowns(self) -> int:
        return len(self.K)

    @property
    def homogeneous(self) -> bool:
        """Whether s and 2 s are as good: nothing is added, and a norm divides by the size."""
        return self.affine is None and self.batch is None and not bool(self.c.any())

    @property
    def read_entries(self) -> int:
        """Of what the second convolution reads of a sample."""
        return self.c.numel()

    @property
    def entries(self) -> int:
        return self.unknowns * self.read_entries

    @cached_property
    def _slopes(self) -> Tensor:
        return self.K if self.affine is None else self.K * self.affine.scale[:, None]

    @cached_property
    def _constant(self) -> Tensor:
        return (
            self.c
            if self.affine is None
            else self.c * self.affine.scale[:, None] + self.affine.shift[:, None]
        )

    def normed_by(self, s: Tensor) -> MapCondition:
        """With the statistics of these samples."""
        assert self.batch is not None
        return replace(self, affine=self.batch.of((self.everywhere or self).written(s)))

    def written(self, s: Tensor) -> Tensor:
        """(S, C, P) what the first convolution writes."""
        return torch.tensordot(s, self.K, 1) + self.c

    def _normed(self, s: Tensor) -> Tensor:
        z = torch.tensordot(s, self._slopes, 1) + self._constant
        return z if self.norm is None else self.norm(z)

    def read(self, s: Tensor) -> Tensor:
        """(S, C, P) what the second convolution reads."""
        return self.activation.function(self._normed(s))

    def misfit(self, s: Tensor) -> Tensor:
        """(S,) share of what the next convolution reads that lies outside its space."""
        a = self.space.core(self.read(s).flatten(1))
        size = a.norm(dim=1)
        return torch.where(
            size > _DEAD, self.space.outside(a).norm(dim=1) / size.clamp_min(_DEAD), 1.0
        )

    def linearize(self, s: Tensor) -> Normal:
        """The relative residual, whose squared norm is that of the misfit: with a residual e of
        what is read, a, d(e / |a|) = de / |a| − r (a · da) / |a|²."""
        z = self._normed(s)
        slope = self.activation.slope(z).flatten(1)
        a = self.space.core(self.activation.function(z).flatten(1))
        J = self.space.core(self._moved(s).flatten(2) * slope[:, None, :])
        size = a.norm(dim=1).clamp_min(_DEAD)
        rest = self.space.outside(a) / size[:, None]
        cost = rest.square().sum(1)
        back = self.space.back(rest)
        sides = J @ (torch.stack([a, back], 2) / size[:, None, None])  # (S, k, 2)
        along, to = sides[..., 0] / size[:, None], sides[..., 1]
        gradient = to - cost[:, None] * along
        cross = along[:, :, None] * to[:, None, :]
        N = self.space.gram(J) / size[:, None, None].square() - cross - cross.mT
        N = N + cost[:, None, None] * along[:, :, None] * along[:, None, :]
        cost = torch.where(size > _DEAD, cost, 1.0)
        return Normal(cost, gradient, N, lambda s: self.misfit(s).square(), ROUNDING)

    def _moved(self, s: Tensor) -> Tensor:
        """(S or 1, k, C, P) derivatives of what is activated."""
        if self.norm is None:
            return self._slopes[None]
        z, norm = self.written(s), self.norm
        moved: Tensor = torch.func.vmap(
            lambda v: torch.func.jvp(norm, (z,), (v.expand_as(z),))[1], in_dims=0, out_dims=1
        )(self.K)
        return moved


def convolved(maps: Tensor, weight: Tensor, padding: tuple[int, ...]) -> Tensor:
    """(K, C, P) what a convolution without its bias makes of maps, in float64."""
    return F.conv2d(maps, weight.detach().to(maps), padding=padding).flatten(2)
