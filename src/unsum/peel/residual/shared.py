"""One small matrix for all input channels: what the gradient of a convolution says about the maps
that it read.

    ∇W[o, c, u, v] = Σ_{b, p} D[b, o, p] x[b, c, s p + (u, v) − padding]

is, for every input channel c, the same R with entries of D at shifted places: k² O equations for
B·h·w unknowns. With a stride s the unknowns fall into s² classes, each seen by taps of its own;
every class is a system by itself. Several convolutions that read the same maps (a block's first one
and the one on its shortcut) stand below each other.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from unsum.network.unit import Unit

_RIDGE = 1e-14  # of the largest eigenvalue: what Cholesky takes to stand rounding
_HIDDEN = 1e-6  # of the matrix: constants that leave less than this are seen by nothing
DEAD = 1e-4  # of the median γ: channels whose gradient is all rounding
_POWERS = 12  # steps of inverse iteration: a condition to a few percent


@dataclass(frozen=True)
class Taker:
    """A convolution that read the maps, and d, the gradient behind its BatchNorm."""

    unit: Unit
    d: Tensor  # (B, O, h', w')

    @cached_property
    def weight(self) -> Tensor:
        """(O,) Equations count relative to the size of their tensor, as rounding does; channels
        without γ say nothing."""
        unit, size = self.unit, self.unit.gamma.abs()
        alive = size > DEAD * size.median()
        told = (
            unit.grad_W.flatten(1).norm(dim=1)
            * (unit.variance + unit.eps).sqrt()
            / size.clamp_min(1e-300)
        )
        count = alive.sum() * unit.grad_W[0].numel()
        return alive / ((told * alive).square().sum() / count).sqrt().clamp_min(1e-300)


class Shared:
    """The equations of all `readers` for maps of `size` (B, I, h, w), factored once."""

    def __init__(self, readers: list[Taker], size: torch.Size) -> None:
        self.readers, self.size = readers, size
        self.step = common_step(readers)
        spread = [_spread(reader, size) for reader in readers]
        corners = [(i, j) for i in range(self.step) for j in range(self.step)]
        self.parts = [PlaceClass(readers, spread, self.step, corner) for corner in corners]

    @property
    def condition(self) -> float:
        """Of the worst class; infinite where one is not determined."""
        return max(part.condition for part in self.parts)

    @property
    def spare(self) -> float:
        """The least share of equations that are left over to contradict an answer."""
        return min(1 - part.unknowns / max(part.equations, 1) for part in self.parts)

    def solve(self, told: list[Tensor]) -> Tensor:
        """(B, I, h, w) the maps of which each reader's gradient is `told` (O, I, k, k)."""
        maps = torch.zeros(self.size, dtype=told[0].dtype, device=told[0].device)
        for part in self.parts:
            part.put(maps, torch.cholesky_solve(part.transposed(told), part.L))
        return maps

    def errors(self, noise: float, maps: Tensor) -> Tensor:
        """(B,) relative errors of `maps`, where every (weighted) equation errs by `noise`."""
        squares = torch.stack([part.variance() for part in self.parts]).sum(0) * maps.shape[1]
        return noise * squares.sqrt() / maps.flatten(1).norm(dim=1).clamp_min(1e-300)


def common_step(readers: list[Taker]) -> int:
    """The stride that all readers have, else 1: the places fall into so many classes each way."""
    strides = {reader.unit.stride for reader in readers}
    return strides.pop() if len(strides) == 1 else 1


class PlaceClass:
    """The equations of one class of places: those at corner, corner + step, …"""

    def __init__(
        self, readers: list[Taker], spread: list[Tensor], step: int, corner: tuple[int, int]
    ) -> None:
        self.readers, self.corner = readers, corner
        self.places = slice(corner[0], None, step), slice(corner[1], None, step)
        self.met = [reader.unit.taps(step, corner) for reader in readers]
        rows = []
        for reader, D, met in zip(readers, spread, self.met, strict=True):
            seen = D[:, :, :, :, corner[0] :: step, corner[1] :: step]  # (B, O, k, k, h, w)
            self.shape = len(seen), *seen.shape[-2:]
            seen = seen.flatten(2, 3)[:, :, met]
            seen = seen * reader.weight.view(1, -1, 1, 1, 1)
            rows.append(seen.permute(1, 2, 0, 3, 4).flatten(0, 1).flatten(1))
        self.R = torch.cat(rows)
        self.equations, self.unknowns = self.R.shape
        self._factor()

    def _factor(self) -> None:
        gram = self.R.T @ self.R
        top = float(torch.linalg.matrix_norm(gram, math.inf)) if len(gram) else 0.0
        ones = gram.new_ones(self.unknowns)
        self.hides_mean = bool(
            self.R.sum(1).norm() <= _HIDDEN * math.sqrt(max(top, 1e-300)) * math.sqrt(self.unknowns)
        )
        if self.hides_mean:
            gram = gram + (gram.diagonal().mean() / self.unknowns) * ones[:, None]
        ridge = _RIDGE * max(top, 1e-300)
        gram.diagonal().add_(ridge)
        self.gram = gram
        self.L, failed = torch.linalg.cholesky_ex(gram)
        least = 0.0 if bool(failed) else self._least()
        full = least > 1e3 * ridge and self.equations + int(self.hides_mean) >= self.unknowns
        self.condition = math.sqrt(_largest(gram) / least) if full else math.inf

    def _least(self) -> float:
        vector = torch.linspace(
            -1, 1, self.unknowns, dtype=self.L.dtype, device=self.L.device
        ).cos()[:, None]
        vector = vector + torch.randn(
            self.unknowns, 1, dtype=self.L.dtype, generator=torch.Generator().manual_seed(0)
        ).to(self.L)
        size = 1.0
        for _ in range(_POWERS):
            vector = torch.cholesky_solve(vector / vector.norm(), self.L)
            size = float(vector.norm())
        return 1 / size

    def transposed(self, told: list[Tensor]) -> Tensor:
        """(n, I) Rᵀ times what the readers' gradients are told to be."""
        rows = [
            (reader.weight.view(-1, 1, 1) * g.flatten(2)[:, :, met]).permute(0, 2, 1).flatten(0, 1)
            for reader, g, met in zip(self.readers, told, self.met, strict=True)
        ]
        return self.R.T @ torch.cat(rows)

    def cast(self, readers: list[Taker], dtype: torch.dtype) -> PlaceClass:
        """The same equations in another precision."""
        other = copy.copy(self)
        other.readers, other.R = readers, self.R.to(dtype)
        return other

    def take(self, maps: Tensor) -> Tensor:
        """(n, I) the entries of the class."""
        return maps[..., self.places[0], self.places[1]].permute(0, 2, 3, 1).flatten(0, 2)

    def put(self, maps: Tensor, values: Tensor) -> None:
        maps[..., self.places[0], self.places[1]] = values.unflatten(0, self.shape).permute(
            0, 3, 1, 2
        )

    def variance(self) -> Tensor:
        """(B,) the sum of the variances of a channel's entries for equations that err by 1."""
        return (
            torch.cholesky_inverse(self.L)
            .diagonal()
            .clamp_min(0)
            .unflatten(0, self.shape)
            .sum((1, 2))
        )


def _largest(gram: Tensor) -> float:
    vector = gram.sum(1)
    for _ in range(_POWERS):
        vector = gram @ (vector / vector.norm().clamp_min(1e-300))
    return float(vector.norm())


def _spread(reader: Taker, size: torch.Size) -> Tensor:
    """(B, O, k, k, h, w): for every place that is read, the entries of D that its value meets, tap
    by tap."""
    unit, k = reader.unit, reader.unit.kernel
    D = unit.centered(reader.d)
    sides = [side + 2 * unit.padding - k + 1 for side in size[2:]]  # of the output without a stride
    without = D.new_zeros(*D.shape[:2], *sides)
    without[:, :, :: unit.stride, :: unit.stride] = D
    windows = F.unfold(without, k, padding=k - 1 - unit.padding)
    return windows.view(*D.shape[:2], k, k, size[2], size[3]).flip(2, 3)
