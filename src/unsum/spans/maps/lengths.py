"""How long the maps are, where neither a bias nor BatchNorm tells: the head's gradient does, sample
by sample.

Without a bias in front of it, a relu, or a norm of single samples, gives the same condition for x
and 2 x. Three cases:

- Features change their direction with the length of x: a shortcut beside a norm. Rows of the head's
  ∇W are mixtures of all features, whatever the labels are, so lengths are those for which no row
  leaves the features' span.
- Features grow with x: no norm at all. Then ∇W tells h = a G of each sample, and G = softmax(a l +
  b) − y has one a that fits, of three or more classes. Of two, every a has an h of this direction,
  and none is told.
- Features do not depend on it: nothing above does, and no length is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unsum.head import Head, orthonormal_rows
from unsum.spans.maps.scale import least
from unsum.spans.maps.tail import Tail

_STEP = 1e-4  # of a length: differences of features, in float64
_SEEN = 1e-4  # relative change of the features below which they do not depend on a length
_STEPS = 40  # of Gauss–Newton, or bisections
# lengths that are tried where features grow with them: from 1 / range to range
_GRID, _RANGE = 401, 1e4


class MapLengths(NamedTuple):
    """(B,) what each map is to be multiplied by; `told`: whether something told it, or features do
    not depend on it."""

    factors: Tensor
    told: bool


def settle_lengths(tail: Tail, head: Head, maps: Tensor) -> MapLengths:
    """MapLengths of maps (B, C, h, w) whose directions are known, for cross-entropy where features
    grow with them."""
    whole = head.grad_W.double()

    def features(factors: Tensor) -> Tensor:
        return tail.forward(maps * factors[:, None, None, None])[0]

    def slopes(factors: Tensor) -> tuple[Tensor, Tensor]:
        """(features, their derivatives by the logarithms of lengths)."""
        here, there = features(factors), features(factors * (1 + _STEP))
        return here, (there - here) / _STEP

    ones = (
        maps.new_ones(len(maps))
        / maps.flatten(1).norm(dim=1)
        * maps.flatten(1).norm(dim=1).median()
    )
    here, change = slopes(ones)
    turn = change - here * ((change * here).sum(1) / here.square().sum(1))[:, None]
    size = here.norm(dim=1)
    if bool((turn.norm(dim=1) > _SEEN * size).any()):

        def outside(factor: float) -> float:
            rows = orthonormal_rows(features(factor * ones))
            return float((whole - (whole @ rows.T) @ rows).norm())

        return MapLengths(_by_span(slopes, whole, ones * least(outside, 1.0)), told=True)
    grows = bool((change.norm(dim=1) > _SEEN * size).any())
    if grows and len(whole) > 2:
        found = _by_softmax(head, here, tail.forward(maps * ones[:, None, None, None])[1])
        return MapLengths(ones * found, told=True)
    return MapLengths(ones, told=not grows)


def _by_span(
    slopes: Callable[[Tensor], tuple[Tensor, Tensor]], whole: Tensor, factors: Tensor
) -> Tensor:
    """MapLengths for which rows of ∇W (C, H) are mixtures of features: variable projection (Golub
    and Pereyra, 1973), by Gauss–Newton with Kaufman's Jacobian and Levenberg's damping."""

    def left(F_: Tensor) -> Tensor:
        rows = orthonormal_rows(F_)
        return whole - (whole @ rows.T) @ rows

    damping = 1e-3
    here, change = slopes(factors)
    rest = left(here)
    for _ in range(_STEPS):
        rows = orthonormal_rows(here)
        G = torch.linalg.lstsq(here.T, whole.T).solution  # (B, C)
        moved = change - (change @ rows.T) @ rows
        N = (G @ G.T) * (moved @ moved.T)
        N.diagonal().mul_(1 + damping).add_(1e-12 * float(N.diagonal().max()) + 1e-300)
        step = torch.linalg.solve(N, ((G @ rest) * moved).sum(1)).clamp(-1, 1)
        tried = slopes(factors * step.exp())
        new = left(tried[0])
        if float(new.norm()) < float(rest.norm()):
            factors, (here, change), rest, damping = factors * step.exp(), tried, new, damping / 4
        else:
            damping = min(damping * 6, 1e9)
    return factors


def _by_softmax(head: Head, features: Tensor, logits: Tensor) -> Tensor:
    """Factors a (B,) with h = a · weight · (softmax(a l + b) − y), of features and logits l + b at
    a = 1."""
    whole = head.grad_W.double()
    h = torch.linalg.lstsq(features.T, whole.T).solution  # (B, C)
    B, C = h.shape
    b = logits.new_zeros(C) if head.b is None else head.b.double()
    Y = F.one_hot(h.argmin(1), C).to(h)

    def misfit(exponents: Tensor) -> Tensor:
        """(K, B) for lengths _RANGE ** exponents (K, B)."""
        a = _RANGE ** exponents[..., None]
        G = (a * (logits - b) + b).softmax(-1) - Y
        return (F.normalize(G, dim=-1) - F.normalize(h, dim=-1)).square().sum(-1)

    grid = torch.linspace(-1, 1, _GRID, dtype=h.dtype, device=h.device)
    best = grid[misfit(grid[:, None].expand(_GRID, B)).argmin(0)]
    width = 2 / (_GRID - 1)
    low, high = best - width, best + width
    for _ in range(_STEPS):  # thirds: the function has one minimum there
        left, right = low + (high - low) / 3, high - (high - low) / 3
        nearer = misfit(left[None])[0] < misfit(right[None])[0]
        low, high = torch.where(nearer, low, left), torch.where(nearer, right, high)
    return _RANGE ** ((low + high) / 2)
