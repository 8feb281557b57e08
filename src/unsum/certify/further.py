"""Unknowns besides the features that may have changed the gradient: what G changes by, per unit.

The residual changes by w ∘ α Σ_i ΔG_i t̃_iᵀ for an unknown that all samples share.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from unsum.equation.equation import Linearized

# [1] of a length, for a second difference in float64.
# Chosen by: the fourth root of float64's rounding, 1e-4, and ten times that.
STEP = 1e-3


class FurtherUnknown(IntEnum):
    """The rows of `further_unknowns`; those from `EXCHANGED` on are labels that turn into
    others."""

    LENGTHS = 0
    TEMPERATURE = 1
    TARGET_SIZE = 2
    FLOOR = 3
    EXCHANGED = 4


def further_unknowns(here: Linearized, others: Tensor) -> Tensor:
    """(…, 4 + n, B, C) how G changes with each; of `LENGTHS` what T's own scaling leaves.

    Labels turn into those of the `others` (n, B) or (n, 1): `all_others`, or some.
    """
    first = (0.5 * lengths(here)[1], temperature(here), target_size(here), here.floor_change())
    Y = here.equation.targets(here.at).unsqueeze(-3)
    turned = Y[..., 0, others, :] - Y
    return torch.cat([torch.stack(first, dim=-3), turned], dim=-3)


def all_others(here: Linearized) -> Tensor:
    """(B, 1)."""
    return torch.arange(here.G.shape[-2], device=here.G.device)[:, None]


def lengths(here: Linearized) -> tuple[Tensor, Tensor]:
    """(…, B, C) first and second derivative of G by the factor s in s f, at s = 1."""
    equation, at, h = here.equation, here.at, STEP
    grown, Y = at.T @ equation.K, equation.targets(at)
    up, down = (equation.loss.gradient(grown * s + equation.b, Y) for s in (1 + h, 1 - h))
    return (up - down) / (2 * h), (up - 2 * here.G + down) / h**2


def temperature(here: Linearized) -> Tensor:
    """(…, B, C) per unit of log τ: G(l/τ)/τ changes by −G − H l, besides the weights, which
    follow."""
    return -here.G - here.curvature.times(here.equation.logits(here.at.T))


def target_size(here: Linearized) -> Tensor:
    """(…, B, C) per unit of the logarithm of what targets were multiplied by."""
    return -here.equation.targets(here.at)
