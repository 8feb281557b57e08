"""What targets usually are: found ones are near one-hot, smoothed or mixed rows, and rounding is taken off them.

A separator that is a little off spreads its error over the entries of Y. One-hot and smoothed rows have a form of their
own, so that nearness to it tells what they were: onehot (1 − C f) + f with one floor f for the whole batch. Mixed rows keep
their large entries and lose the small ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NEAR = 0.3  # largest deviation of any entry with which a form is tried; the gradients decide
_WEIGHT = 0.02  # least weight of a label in a mixed row


def likely_targets(Y: Tensor) -> list[Tensor]:
    """Y (B, C) tidied in the two simplest ways that stay near it, and Y as it is."""
    C = Y.shape[1]
    hard = torch.nn.functional.one_hot(Y.argmax(1), C).to(Y)
    floor = _floor(Y)
    candidates = [hard, hard * (1 - C * floor) + floor, _mixed(Y, 0.0), _mixed(Y, floor)]
    near = [candidate for candidate in candidates if float((candidate - Y).abs().max()) < _NEAR]
    different = [near[0], *(other for other in near[1:] if not torch.equal(other, near[0]))] if near else []
    return [*different[:2], Y]


def _floor(Y: Tensor) -> float:
    """The value that most entries share, 0 where it is below what rounding may leave."""
    floor = float(Y.median())
    return floor if floor * Y.shape[1] > _WEIGHT else 0.0


def _mixed(Y: Tensor, floor: float) -> Tensor:
    """Rows of a few large entries over a floor, with the sum of 1 kept by scaling the entries above it."""
    above = torch.where(Y - floor > _WEIGHT, Y - floor, torch.zeros_like(Y))
    rows: Tensor = above * ((1 - Y.shape[1] * floor) / above.sum(1, keepdim=True).clamp_min(1e-12)) + floor
    return rows


def open_entries(Y: Tensor) -> Tensor:
    """(B, C) entries of mixed rows whose weight only the gradient can tell; none in one-hot and smoothed rows."""
    limit = _floor(Y) + _WEIGHT / 2
    large = limit < Y
    return large & (large.sum(1, keepdim=True) > 1)


def refit(Y: Tensor, free: Tensor, P: Tensor, F: Tensor, grad_W: Tensor, factor: float) -> Tensor:
    """Y with its free entries fitted to the head's gradient ∇W_c = factor Σ_i (P − Y)_ic f_i, class by class."""
    fitted = Y.clone()
    for c in free.any(0).nonzero()[:, 0].tolist():
        members = free[:, c]
        known = (P[:, c] - Y[:, c] * ~members) @ F - grad_W[c].double() / factor
        fitted[members, c] = torch.linalg.lstsq(F[members].T, known[:, None]).solution[:, 0]
    return fitted
