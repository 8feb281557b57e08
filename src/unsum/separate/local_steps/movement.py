"""How far the head moved, factored: the sum over steps that everything is read out of, with the noise of rounded weights.

With momentum μ and weight decay λ,  v_t = μ v_{t−1} + g_t + λ w_t  and  w_{t+1} = w_t − η v_t.  All of it is linear, so

    w_t = kept_t w_0 − η Σ_{s<t} reach_ts g_s

with numbers that do not depend on the data (`Schedule`). The received change Δ is the same sum at the end, so that
X = −Δ + (kept − 1) w_0 = η Σ_s reach_s g_s  has a direction for each sample of each step and no more. Here X stands where the
exact solver has a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.declared import check_steps
from unsum.equation.noise import Noise, measure_noise
from unsum.equation.observation import Observation, observe
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.local_training import LocalTraining

_ROUNDED = 0.22  # deviation of a rounded number, in units of the last place of its size


@dataclass(frozen=True)
class Schedule:
    """`kept` (T + 1,) and `reach` (T + 1, T) as above; `sizes` are the samples of the steps of one epoch."""

    kept: Tensor
    reach: Tensor
    sizes: tuple[int, ...]
    epochs: int

    @classmethod
    def of(cls, training: LocalTraining, sizes: tuple[int, ...]) -> Schedule:
        T, rate = training.steps or 1, training.learning_rate or 0.0
        check_steps(T)  # rows of T numbers, T of them, follow
        kept, pull = [1.0], 0.0
        reach, velocity = [torch.zeros(T, dtype=torch.float64)], torch.zeros(T, dtype=torch.float64)
        for t in range(T):
            pull = training.momentum * pull + training.weight_decay * kept[t]
            velocity = training.momentum * velocity - training.weight_decay * rate * reach[t]
            velocity[t] += 1
            kept.append(kept[t] - rate * pull)
            reach.append(reach[t] + velocity)
        return cls(torch.tensor(kept, dtype=torch.float64), torch.stack(reach), sizes, training.epochs)

    @property
    def steps(self) -> int:
        return self.reach.shape[1]

    @property
    def samples(self) -> int:
        """How many different samples there are."""
        return sum(self.sizes)

    def size(self, step: int) -> int:
        return self.sizes[step % len(self.sizes)]


def observe_movement(head: Head, training: LocalTraining, most: int | None) -> Observation:
    """X = U A with the rank that stands out of the noise, `most` at most; K and b are those of the weights that were sent."""
    moved = whole_movement(head, training)
    return observe(moved, most, _noise(head, moved, training.steps or 1))


def whole_movement(head: Head, training: LocalTraining) -> Head:
    """The head with X in the place of its gradient."""
    if head.divisor is None:
        raise UnsumError(
            "The attack 'local-steps' needs a change of weights, and the update holds a gradient; use 'exact' on it."
        )
    kept = float(Schedule.of(training, (1,)).kept[-1])
    # One step's decay had been taken out of the delta already.
    return _changed(head, head.divisor, training.weight_decay * head.divisor + kept - 1)


def of_one_step(head: Head, training: LocalTraining) -> Head:
    """The gradient if all of the movement were one step: BatchNorm's counters count micro-batches, not steps.

    g = −Δ/η − λ w, and the head holds −Δ/(ηT) − λ w.
    """
    T = training.steps or 1
    return _changed(head, T, (T - 1) * training.weight_decay)


def _changed(head: Head, factor: float, decay: float) -> Head:
    """The head with factor · gradient + decay · weight in the place of its gradient."""

    def whole(gradient: Tensor, weight: Tensor) -> Tensor:
        return factor * gradient + decay * weight if decay else factor * gradient

    grad_b = None if head.grad_b is None or head.b is None else whole(head.grad_b, head.b)
    return replace(head, grad_W=whole(head.grad_W, head.W), grad_b=grad_b, divisor=None)


def _noise(head: Head, moved: Head, steps: int) -> Noise:
    """Every step rounds the weights themselves, and a difference of weights keeps that however small the step is."""
    measured = measure_noise(moved)
    unit = _ROUNDED * torch.finfo(head.W.dtype).eps * steps**0.5
    rounding = unit * head.row_norms(head.W) / head.W.shape[1] ** 0.5
    level = torch.maximum(measured.level, rounding)
    added = measured.added or float(rounding.norm()) > float(measured.level.norm())
    return Noise(level, added, measured.relative)
