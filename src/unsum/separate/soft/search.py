"""The loss along a ray, and the two searches for its root: L-BFGS, and particles where that finds
nothing.

The loss is how much the entries of ŷ(λ) differ that the augmentation makes equal:

    smoothing  (1 − ε) e_y + ε/C     all but the largest entry are ε/C: 1000 Var(the C − 1 smallest)
    mixup      w e_y + (1 − w) e_z   all but the two largest are 0:     1000 Var(the C − 2 smallest)

Var divides by the number of entries. A hard label is both. The loss is zero at λ*, and also falls
to zero as |λ| → ∞, where softmax saturates and u/λ vanishes: that is no label. A root is therefore
a minimum with larger losses on either side.

**Descent**, from λ = +1 and from −1, as published: on each side at most 100 steps of torch's L-BFGS
with rate 0.5. Three losses in a row within 0.1 % are a stall: then λ jumps outward by 0.5, by 1 at
the next stall, and so on. A side is abandoned beyond
|λ| = 100 and succeeds below a loss of 1e-9.

**Swarm**, over intervals of λ that lead outward, positive and negative in turn: 500 particles, 40
iterations, inertia 0.8, pulls of up to 0.5 to their own and to the common best, over [0.7, 6],
[−6.3, −1], [5.7, 10], … to 70; for a noisy gradient 200 particles, 30 iterations, to 10. They start
anywhere in the interval with speeds up to its width and stop at its ends. Written out here so that
all particles share one softmax: nevergrad, asked for every particle on its own, takes 7 s for an
interval instead of 0.03 s.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from unsum.running.late_scipy import root
from unsum.separate.soft.ray import Ray

FACTOR = 1000.0  # of the variance; this and what follows as published, see above
DISTINCT = {"smoothing": 1, "mixup": 2}  # entries of a label that may differ from the rest
SUCCESS = 1e-9  # loss of a root
STEPS, RATE, FIRST_JUMP, FARTHEST = 100, 0.5, 0.5, 100.0  # of the descent
_STALL = 1e-3  # relative spread of three losses in a row
INERTIA, PULL = 0.8, 0.5  # of the swarm
_OVERLAP = 0.3  # how far its intervals reach below the one before


class Spread:
    """The loss of one kind of label along one ray, for many λ at a time; counts its evaluations."""

    def __init__(self, ray: Ray, kind: str) -> None:
        self.ray = ray
        self.kind = kind
        self.equal = len(ray.u) - DISTINCT[kind]
        self.evaluations = 0

    def __call__(self, lengths: Tensor) -> Tensor:
        """(n,) losses at n lengths λ: one softmax over all of them."""
        self.evaluations += len(lengths)
        Y = self.ray.labels(lengths)
        # a thousand times as few as the smallest, which are what remains
        largest = Y.topk(DISTINCT[self.kind], dim=1)
        mean = (Y.sum(1) - largest.values.sum(1)) / self.equal
        from_mean = Y.sub_(mean[:, None]).scatter_(1, largest.indices, 0.0)
        return FACTOR / self.equal * from_mean.square().sum(1)

    def at(self, length: float) -> float:
        return float(self(self.ray.u.new_tensor([length])))

    def with_slope(self, length: float) -> tuple[float, float]:
        """The loss and its derivative: dŷ_i/dλ = p_i (k_i − Σ_j p_j k_j) + u_i/λ²."""
        self.evaluations += 1
        ray = self.ray
        P = torch.softmax(length * ray.k + ray.b, dim=0)
        Y = P - ray.u / length
        change = P * (ray.k - P @ ray.k) + ray.u / length**2
        chosen = Y.topk(self.equal, largest=False, sorted=False).indices
        from_mean = Y[chosen] - Y[chosen].mean()
        value, slope = from_mean @ from_mean, 2 * from_mean @ change[chosen]
        return FACTOR / self.equal * float(value), FACTOR / self.equal * float(slope)

    def noise_floor(self, length: float) -> float:
        """The loss that the gradient's noise alone leaves at λ: in u, and through the logits λ k in
        p."""
        ray = self.ray
        P = (
            torch.softmax(length * ray.k + ray.b, dim=0)
            .topk(self.equal, largest=False, sorted=False)
            .values
        )
        return FACTOR * (
            (ray.noise_u / length) ** 2 + float((P * length * ray.noise_k).square().mean())
        )


def descend(loss: Spread, side: float) -> float | None:
    """λ with a loss below 1e-9, searched from `side` (+1 or −1), or None."""
    length = torch.tensor(side, dtype=torch.float64, requires_grad=True)
    # In one dimension the last two slopes alone determine the step: a longer history changes
    # nothing but the time.
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
    """The minimum downhill of `start`, or None where the way leads to |λ| = 0 or beyond 100: that
    is the saturated softmax.

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
    return root(lambda length: loss.with_slope(length)[1], low, high, tolerance=1e-13)


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
    """The minimum next to the best λ that the particles saw, or None where that leads to the
    saturated softmax.

    The minimum is looked for whenever the best improves: that costs little and ends most swarms at
    the first iteration.
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
        speed = (
            INERTIA * speed + to_own * (own_best - position) + to_common * (common_best - position)
        )
        position = np.clip(position + speed, low, high)
    return minimum
