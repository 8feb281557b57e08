"""Particles where L-BFGS finds nothing: intervals of λ that lead outward, positive and negative in turn.

500 particles, 40 iterations, inertia 0.8, pulls of up to 0.5 to their own and to the common best, over [0.7, 6], [−6.3, −1],
[5.7, 10], … to 70; for a noisy gradient 200 particles, 30 iterations, to 10. They start anywhere in the interval with speeds
up to its width and stop at its ends. Written out here so that all particles share one softmax: nevergrad, which is asked for
every particle on its own, takes 7 s for an interval instead of 0.03 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from unsum.separate.soft.descent import bottom
from unsum.separate.soft.spread import SUCCESS, Spread

INERTIA, PULL = 0.8, 0.5
_OVERLAP = 0.3


@dataclass(frozen=True)
class SwarmPlan:
    particles: int
    iterations: int
    edges: tuple[float, ...]

    def intervals(self) -> Iterator[tuple[float, float]]:
        for near, far in pairwise(self.edges):
            yield near - _OVERLAP, far
            yield -far - _OVERLAP, -near


CLEAN = SwarmPlan(500, 40, (1.0, 6.0, 10.0, 30.0, 50.0, 70.0))
NOISY = SwarmPlan(200, 30, (1.0, 5.0, 10.0))


def swarm(loss: Spread, plan: SwarmPlan, interval: tuple[float, float], seed: int) -> float | None:
    """The minimum next to the best λ that the particles saw, or None where that leads to the saturated softmax.

    The minimum is looked for whenever the best improves: that costs little and ends most swarms at the first iteration.
    """
    low, high = interval
    random = np.random.default_rng(seed)
    position = random.uniform(low, high, plan.particles)
    speed = random.uniform(low - high, high - low, plan.particles)
    own_best, own_least = position.copy(), np.full(plan.particles, np.inf)
    minimum, least = None, np.inf
    for _ in range(plan.iterations):
        losses = loss(torch.from_numpy(position)).numpy()
        better = losses < own_least
        own_best[better], own_least[better] = position[better], losses[better]
        common_best = own_best[own_least.argmin()]
        if own_least.min() < least:
            least = own_least.min()
            minimum = bottom(loss, float(common_best))
            if minimum is not None and loss.at(minimum) < SUCCESS:
                break
        to_own, to_common = random.random((2, plan.particles)) * PULL
        speed = INERTIA * speed + to_own * (own_best - position) + to_common * (common_best - position)
        position = np.clip(position + speed, low, high)
    return minimum
