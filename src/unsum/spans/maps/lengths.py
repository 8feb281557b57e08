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
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unsum.engine.budget import Budget
from unsum.engine.descend import ROUNDING, NonlinearProblem, Normal, descend
from unsum.head import Head, orthonormal_rows
from unsum.spans.maps.scale import least
from unsum.spans.maps.tail import Tail

# [of a length] change for differences of features. Chosen by: small, in float64.
_STEP = 1e-4
# [relative] change of features below which they do not depend on a length.
# Chosen by: arbitrary margin.
_SEEN = 1e-4
# From one length for all, a few steps lead to rounding. Chosen by: arbitrary budget.
_DESCENT = Budget(steps=40)
# [lengths] on a grid from 1 / range to range, where features grow with them, and [sections] of the
# best cell. Chosen by: arbitrary budget.
_GRID, _RANGE, _SECTIONS = 401, 1e4, 40


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

    ones = (
        maps.new_ones(len(maps))
        / maps.flatten(1).norm(dim=1)
        * maps.flatten(1).norm(dim=1).median()
    )
    here, change = _slopes(features, ones)
    turn = change - here * ((change * here).sum(1) / here.square().sum(1))[:, None]
    size = here.norm(dim=1)
    if bool((turn.norm(dim=1) > _SEEN * size).any()):
        problem = _InSpan(features, whole)
        common = least(lambda factor: float(problem.costs((factor * ones).log()[None])), 1.0)
        ends = descend(problem, (common * ones).log()[None], _DESCENT)
        return MapLengths(ends.s[0].exp(), told=True)
    grows = bool((change.norm(dim=1) > _SEEN * size).any())
    if grows and len(whole) > 2:
        found = _by_softmax(head, here, tail.forward(maps * ones[:, None, None, None])[1])
        return MapLengths(ones * found, told=True)
    return MapLengths(ones, told=not grows)


@dataclass(frozen=True)
class _InSpan(NonlinearProblem):
    """Logarithms s (1, B) of lengths for which the rows of ∇W (C, H) are mixtures of features.

    Variable projection (Golub and Pereyra, 1973) with Kaufman's Jacobian.
    """

    features: Callable[[Tensor], Tensor]
    whole: Tensor

    def linearize(self, s: Tensor) -> Normal:
        here, change = _slopes(self.features, s[0].exp())
        rows = orthonormal_rows(here)
        rest = self._outside(rows)
        G = torch.linalg.lstsq(here.T, self.whole.T).solution  # (B, C)
        moved = change - (change @ rows.T) @ rows
        gradient = -((G @ rest) * moved).sum(1)
        N = (G @ G.T) * (moved @ moved.T)
        return Normal(rest.square().sum()[None], gradient[None], N[None], self.costs, ROUNDING)

    def moved(self, s: Tensor, step: Tensor) -> Tensor:
        return s + step.clamp(-1, 1)

    def costs(self, s: Tensor) -> Tensor:
        rows = orthonormal_rows(self.features(s[0].exp()))
        return self._outside(rows).square().sum()[None]

    def _outside(self, rows: Tensor) -> Tensor:
        return self.whole - (self.whole @ rows.T) @ rows


def _slopes(features: Callable[[Tensor], Tensor], factors: Tensor) -> tuple[Tensor, Tensor]:
    """(features, their derivatives by the logarithms of lengths)."""
    here, there = features(factors), features(factors * (1 + _STEP))
    return here, (there - here) / _STEP


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
    for _ in range(_SECTIONS):  # thirds: the function has one minimum there
        left, right = low + (high - low) / 3, high - (high - low) / 3
        nearer = misfit(left[None])[0] < misfit(right[None])[0]
        low, high = torch.where(nearer, low, left), torch.where(nearer, right, high)
    return _RANGE ** ((low + high) / 2)
