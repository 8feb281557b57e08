"""The one factor that BatchNorm in train mode hides: all maps of the batch may be so many times
larger.

The shortcut does not go through BatchNorm, so the features know it: the rows of the head's gradient
are mixtures of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx

from unsum.gradients import inputs_of
from unsum.head import Head, orthonormal_rows
from unsum.running.deadline import out_of_time

# factors that are tried, from a thousandth of the guess to a thousand times
_GRID, _COARSE, _RANGE = 61, 13, 1000.0
# golden sections, and the exponent's interval that ends them
_GOLDEN, _SECTIONS, _PRECISE = 0.6180339887, 48, 1e-7
_OPEN = 1e-3  # relative change of the features below which the factor is not seen


def common_factor(
    shortcut: fx.GraphModule, head: Head, maps: Tensor, written: Tensor, guess: float
) -> float | None:
    """The factor of maps (B, C, h, w), given what the second convolution writes; None where the
    features do not depend on it."""

    def features(factor: float) -> Tensor:
        with torch.no_grad(), inputs_of(shortcut.get_submodule(head.name)) as seen:
            shortcut(factor * maps, written.clone())
        return seen[-1].flatten(1)

    whole = head.grad_W.double()
    sent = whole if head.grad_b is None else torch.cat([whole, head.grad_b.double()[:, None]], 1)

    def outside(factor: float) -> float:
        F = features(factor)
        rows = orthonormal_rows(
            F if head.grad_b is None else torch.cat([F, torch.ones_like(F[:, :1])], 1)
        )
        return float((sent - (sent @ rows.T) @ rows).norm() / sent.norm())

    first, second = features(guess), features(1.5 * guess)
    scaled = second * ((first * second).sum() / second.square().sum())
    if float((first - scaled).norm()) < _OPEN * float(first.norm()):
        return None
    return least(outside, guess, _GRID)


def least(function: Callable[[float], float], guess: float, grid: int = _COARSE) -> float:
    """The factor for which `function` is least: a grid around the guess, then golden sections."""
    width = 2 / (grid - 1)
    best = min(
        (-1 + i * width for i in range(grid)),
        key=lambda exponent: function(guess * _RANGE**exponent),
    )
    low, high = best - width, best + width
    sides = [low + (high - low) * part for part in (1 - _GOLDEN, _GOLDEN)]
    values = [function(guess * _RANGE**side) for side in sides]
    for _ in range(_SECTIONS):
        if high - low < _PRECISE or out_of_time("a closer look at the factor of the maps"):
            break
        if values[0] < values[1]:
            high, sides = sides[1], [sides[1] - _GOLDEN * (sides[1] - low), sides[0]]
            values = [function(guess * _RANGE ** sides[0]), values[0]]
        else:
            low, sides = sides[0], [sides[1], sides[0] + _GOLDEN * (high - sides[0])]
            values = [values[1], function(guess * _RANGE ** sides[1])]
    return guess * _RANGE ** ((low + high) / 2)
