"""How far the head moved, factored: the sum over steps that everything is read out of, with the noise of rounded weights.

The weights before and after differ by  Δ = (kept − 1) w_0 − η Σ_s reach_s g_s,  so  X = −Δ + (kept − 1) w_0 = η Σ_s reach_s g_s
has a direction for each sample of each step and no more. Here X stands where the exact solver has a gradient.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unsum.equation.noise import Noise, measure_noise
from unsum.equation.observation import Observation, observe
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.local_training import LocalTraining
from unsum.separate.local_steps.schedule import Schedule

_ROUNDED = 0.22  # deviation of a rounded number, in units of the last place of its size


def observe_movement(head: Head, training: LocalTraining, most: int | None) -> Observation:
    """X = U A with the rank that stands out of the noise, `most` at most; K and b are those of the weights that were sent."""
    moved = whole_movement(head, training)
    noise = _noise(head, moved, training.steps or 1)
    observation = observe(moved, None, noise)
    return observe(moved, most, noise) if most is not None and observation.rank > most else observation


def whole_movement(head: Head, training: LocalTraining) -> Head:
    """The head with X in the place of its gradient."""
    if head.divisor is None:
        raise UnsumError(
            "The attack 'local-steps' needs a change of weights, and the update holds a gradient; use 'exact' on it."
        )
    divisor = head.divisor
    kept = float(Schedule.of(training, (1,)).kept[-1])
    decay = training.weight_decay * divisor + kept - 1  # one step's decay had been taken out of the delta already

    def whole(gradient: Tensor, weight: Tensor) -> Tensor:
        return gradient * divisor + decay * weight if decay else gradient * divisor

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
