"""L-BFGS from λ = +1 and from −1, as published, and the last step to the bottom of the well it ended in.

On each side at most 100 steps of torch's L-BFGS with rate 0.5. Three losses in a row within 0.1 % are a stall: then λ jumps
outward by 0.5, by 1 at the next stall, and so on. A side is abandoned beyond |λ| = 100 and succeeds below a loss of 1e-9.
"""

from __future__ import annotations

import math
from collections import deque

import torch
from scipy.optimize import brentq

from unsum.separate.soft.spread import SUCCESS, Spread

STEPS, RATE, FIRST_JUMP, FARTHEST = 100, 0.5, 0.5, 100.0
_STALL = 1e-3


def descend(loss: Spread, side: float) -> float | None:
    """λ with a loss below 1e-9, searched from `side` (+1 or −1), or None."""
    length = torch.tensor(side, dtype=torch.float64, requires_grad=True)
    # In one dimension the last two slopes alone determine the step: a longer history changes nothing but the time.
    optimizer = torch.optim.LBFGS([length], lr=RATE, history_size=1)
    jump, recent = FIRST_JUMP * side, deque([0.0, 0.0, 0.0], maxlen=3)

    def closure() -> float:
        value, slope = loss.with_slope(float(length.detach()))
        length.grad = torch.tensor(slope, dtype=torch.float64)
        return value

    for _ in range(STEPS):
        position, value = float(length.detach()), closure()
        if not abs(position) <= FARTHEST or not math.isfinite(value):
            return None
        if value < SUCCESS:
            return position
        recent.append(value)
        if max(recent) - min(recent) < _STALL * sum(recent) / 3:
            with torch.no_grad():
                length += jump
            jump *= 2
        else:
            optimizer.step(closure)
    return None


def bottom(loss: Spread, start: float) -> float | None:
    """The minimum downhill of `start`, or None where the way leads to |λ| = 0 or beyond 100: that is the saturated softmax.

    The published threshold leaves λ uncertain by a percent where C is large; the minimum does not.
    """
    _, slope = loss.with_slope(start)
    if slope == 0:
        return start
    direction = -math.copysign(1.0, slope)
    here, step = start, 1e-6 * abs(start)
    while True:
        there = here + direction * step
        if there * start <= 0 or abs(there) > FARTHEST:
            return None
        if loss.with_slope(there)[1] * slope <= 0:
            break
        here, step = there, 2 * step
    low, high = sorted((here, there))
    return float(brentq(lambda length: loss.with_slope(length)[1], low, high, xtol=1e-13, rtol=1e-13))
