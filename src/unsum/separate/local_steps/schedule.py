"""The steps of SGD as sums: the weights before each step, and at the end, out of the gradients of the steps before.

With momentum μ and weight decay λ,  v_t = μ v_{t−1} + g_t + λ w_t  and  w_{t+1} = w_t − η v_t.  All of it is linear, so

    w_t = kept_t w_0 − η Σ_{s<t} reach_ts g_s

with numbers that do not depend on the data. The received change is the same sum at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.declared import check_steps
from unsum.local_training import LocalTraining


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


def split(samples: int, steps: int) -> tuple[int, ...]:
    """Sizes of mini-batches as a loader makes them: equal ones, and a smaller one at the end.

    >>> split(8, 4), split(10, 4)
    ((2, 2, 2, 2), (3, 3, 3, 1))
    """
    size = -(-samples // steps)
    sizes = [min(size, max(samples - size * step, 0)) for step in range(steps)]
    if sizes[-1] == 0:  # a loader would have made fewer steps: as equal as can be, then
        return tuple(samples // steps + (step < samples % steps) for step in range(steps))
    return tuple(sizes)
