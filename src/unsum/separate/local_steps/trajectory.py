"""From samples to the weights they lead to: the head before each step, and what the samples leave of its whole movement.

Logits of step t are T_t K_t + b_t with  K_t = A W_tᵀ = kept_t K_0 − η Σ_{s<t} reach_ts T_sᵀ G_s:  once the samples of the steps
before are known, so are the weights, and all of it happens in the few directions of A.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unsum.equation.equation import Equation
from unsum.equation.observation import Observation
from unsum.separate.local_steps.movement import Schedule


@dataclass(frozen=True)
class Walk:
    """The way through the steps whose samples are given."""

    T: Tensor  # (m, R)
    P: Tensor  # (m, C) the predictions, each in the step of its sample
    E: Tensor  # (m, C) what each sample adds to a row of the movement, η reach (p − y) / size of its step
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
        """Through `counts` samples of each of the first steps: rows of T (m, R) and of Y (m, C), step by step."""
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
        return Walk(T, torch.cat([Y[:0], *P]), every, K, b, self.equation.U - every.T @ self.equation.extended(T))

    @cached_property
    def equation(self) -> Equation:
        """Its U (C, R [+ 1]) is the movement itself."""
        return self.observation.equation()

    def _head(self, step: int, weights: list[Tensor], biases: list[Tensor], rate: Tensor) -> tuple[Tensor, Tensor]:
        reach, kept = self.schedule.reach[step], float(self.schedule.kept[step])
        K, b = kept * self.observation.K, kept * self.observation.b
        for s in range(min(step, len(weights))):
            K = K - rate * float(reach[s]) * weights[s]
            if self.has_bias:
                b = b - rate * float(reach[s]) * biases[s]
        return K, b
