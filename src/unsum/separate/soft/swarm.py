"""Particles where L-BFGS finds nothing: intervals of λ that lead outward, positive and negative in turn.

500 particles, 40 iterations, inertia 0.8, pulls of 0.5 to their own and to the common best, over [0.7, 6], [−6.3, −1],
[5.7, 10], … to 70; for a noisy gradient 200 particles, 30 iterations, to 10. All particles share one softmax. nevergrad's
swarm draws its first speeds from a normal distribution and reflects at the bounds, where the published one draws them
uniformly and stops there; the rest is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from unsum.errors import UnsumError
from unsum.separate.soft.descent import bottom
from unsum.separate.soft.spread import SUCCESS, Spread

_OVERLAP = 0.3


@dataclass(frozen=True)
class Plan:
    particles: int
    iterations: int
    edges: tuple[float, ...]

    def intervals(self) -> Iterator[tuple[float, float]]:
        for near, far in pairwise(self.edges):
            yield near - _OVERLAP, far
            yield -far - _OVERLAP, -near


CLEAN = Plan(500, 40, (1.0, 6.0, 10.0, 30.0, 50.0, 70.0))
NOISY = Plan(200, 30, (1.0, 5.0, 10.0))


def swarm(loss: Spread, plan: Plan, interval: tuple[float, float], seed: int) -> float | None:
    """The minimum next to the best λ that the particles saw, or None where that leads to the saturated softmax.

    The minimum is looked for after every iteration, which costs less than two particles do and ends most swarms at the first.
    """
    nevergrad = _nevergrad()
    space = nevergrad.p.Scalar(lower=interval[0], upper=interval[1])
    space.random_state = np.random.RandomState(seed)
    settings = nevergrad.optimizers.ConfPSO(popsize=plan.particles, omega=0.8, phip=0.5, phig=0.5)
    optimiser = settings(space, budget=plan.particles * plan.iterations, num_workers=plan.particles)
    minimum, least = None, float("inf")
    for _ in range(plan.iterations):
        particles = [optimiser.ask() for _ in range(plan.particles)]
        lengths = torch.tensor([particle.value for particle in particles], dtype=torch.float64)
        losses = loss(lengths)
        for particle, value in zip(particles, losses.tolist(), strict=True):
            optimiser.tell(particle, value)
        if float(losses.min()) < least:
            least = float(losses.min())
            minimum = bottom(loss, float(lengths[losses.argmin()]))
            if minimum is not None and loss.at(minimum) < SUCCESS:
                break
    return minimum


def _nevergrad() -> Any:
    try:
        import nevergrad
    except ImportError:
        raise UnsumError(
            "L-BFGS alone does not recover this label and the particle swarm needs nevergrad; "
            "install unsum with its extra 'matching', or use 'exact'."
        ) from None
    return nevergrad
