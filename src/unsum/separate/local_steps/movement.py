"""How far the head moved, factored: the sum over steps that everything is read out of, with the
noise of rounded weights.

With momentum μ and weight decay λ,  v_t = μ v_{t−1} + g_t + λ w_t  and  w_{t+1} = w_t − η v_t.  All
of it is linear, so

    w_t = kept_t w_0 − η Σ_{s<t} reach_ts g_s

with numbers that do not depend on the data (`Schedule`). The received change Δ is the same sum at
the end, so that X = −Δ + (kept − 1) w_0 = η Σ_s reach_s g_s  has a direction for each sample of
each step and no more. Here X stands where the exact solver has a gradient.

From samples to the weights they lead to: the head before each step, and what the samples leave of
its whole movement.

Logits of step t are T_t K_t + b_t with  K_t = A W_tᵀ = kept_t K_0 − η Σ_{s<t} reach_ts T_sᵀ G_s:
once the samples of the steps before are known, so are the weights, and all of it happens in the few
directions of A.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from unsum.equation.equation import Equation
from unsum.equation.noise import Noise, measure_noise
from unsum.equation.observation import Observation, observe
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.local_training import LocalTraining
from unsum.running.declared import check_steps

_ROUNDED = 0.22  # deviation of a rounded number, in units of the last place of its size


@dataclass(frozen=True)
class Schedule:
    """`kept` (T + 1,) and `reach` (T + 1, T) as above; `sizes` are the samples of the steps of one
    epoch."""

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
        return cls(
            torch.tensor(kept, dtype=torch.float64), torch.stack(reach), sizes, training.epochs
        )

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
    """X = U A with the rank that stands out of the noise, `most` at most; K and b are those of the
    weights that were sent.

    Every step rounds the weights themselves, and a difference of weights keeps that however small
    the step is.
    """
    moved = whole_movement(head, training)
    measured = measure_noise(moved)
    unit = _ROUNDED * torch.finfo(head.W.dtype).eps * (training.steps or 1) ** 0.5
    rounding = unit * head.row_norms(head.W) / head.W.shape[1] ** 0.5
    added = measured.added or float(rounding.norm()) > float(measured.level.norm())
    return observe(
        moved, most, Noise(torch.maximum(measured.level, rounding), added, measured.relative)
    )


def whole_movement(head: Head, training: LocalTraining) -> Head:
    """The head with X in the place of its gradient."""
    if head.divisor is None:
        raise UnsumError(
            "The attack 'local-steps' needs a change of weights, and the update holds a gradient; "
            "use 'exact' on it."
        )
    kept = float(Schedule.of(training, (1,)).kept[-1])
    # One step's decay had been taken out of the delta already.
    return _changed(head, head.divisor, training.weight_decay * head.divisor + kept - 1)


def of_one_step(head: Head, training: LocalTraining) -> Head:
    """The gradient if all of the movement were one step: BatchNorm's counters count micro-batches,
    not steps.

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


@dataclass(frozen=True)
class Walk:
    """The way through the steps whose samples are given."""

    T: Tensor  # (m, R)
    P: Tensor  # (m, C) the predictions, each in the step of its sample
    # (m, C) what each sample adds to a row of the movement, η reach (p − y) / size of its step
    E: Tensor
    K: Tensor  # (R, C) of the weights after the steps that are complete
    b: Tensor  # (C,)
    remainder: Tensor  # (C, R [+ 1]) of the movement; a last column is the bias's, times beta


@dataclass(frozen=True)
class Departure:
    """What may have been different from what was declared: logarithms, 0 where nothing was."""

    weights: Tensor  # (m,) of the samples: unequal steps, other rates, copies
    temperature: Tensor  # () of the softmax


@dataclass(frozen=True)
class Trajectory:
    """One movement and the steps behind it."""

    observation: Observation
    schedule: Schedule
    has_bias: bool  # whether the head has one, which moves, too, even if its gradient was kept back
    rate_free: bool  # whether the learning rate is unknown
    departure: Departure | None = None

    def targets(self, labels: Tensor) -> Tensor:
        """(m, C) hard ones."""
        return torch.nn.functional.one_hot(labels, self.observation.classes).to(self.observation.U)

    def weight_of(self, step: int) -> float:
        """reach / size: what p − y of a sample of this step is multiplied by, besides the rate."""
        return float(self.schedule.reach[-1, step]) / self._divisor(step)

    def _divisor(self, step: int) -> int:
        return self.schedule.size(step) if self.observation.reduction == "mean" else 1

    def walk(self, counts: tuple[int, ...], T: Tensor, Y: Tensor, rate: Tensor) -> Walk:
        """Through `counts` samples of each of the first steps: rows of T (m, R) and of Y (m, C),
        step by step."""
        reach, kept = self.schedule.reach, self.schedule.kept
        P: list[Tensor] = []
        E: list[Tensor] = []
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        start = 0
        for step, count in enumerate(counts):
            K, b = self._head(step, weights, biases, rate)
            rows, start = slice(start, start + count), start + count
            cold = 1.0 if self.departure is None else self.departure.temperature.neg().exp()
            p = torch.softmax(cold * (T[rows] @ K + b), dim=1)
            G = cold * (p - Y[rows]) / self._divisor(step)
            if self.departure is not None:
                G = self.departure.weights[rows].exp()[:, None] * G
            weights.append(T[rows].T @ G)
            biases.append(G.sum(0))
            P.append(p)
            E.append(rate * float(reach[-1, step]) * G)
        K, b = self._head(min(len(counts), len(kept) - 2), weights, biases, rate)
        every = torch.cat([Y[:0], *E])
        return Walk(
            T,
            torch.cat([Y[:0], *P]),
            every,
            K,
            b,
            self.equation.U - every.T @ self.equation.extended(T),
        )

    @cached_property
    def equation(self) -> Equation:
        """Its U (C, R [+ 1]) is the movement itself."""
        return self.observation.equation()

    def _head(
        self, step: int, weights: list[Tensor], biases: list[Tensor], rate: Tensor
    ) -> tuple[Tensor, Tensor]:
        reach, kept = self.schedule.reach[step], float(self.schedule.kept[step])
        K, b = kept * self.observation.K, kept * self.observation.b
        for s in range(min(step, len(weights))):
            K = K - rate * float(reach[s]) * weights[s]
            if self.has_bias:
                b = b - rate * float(reach[s]) * biases[s]
        return K, b
