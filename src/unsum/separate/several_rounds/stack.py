"""The heads of several rounds below each other, as one head of n·C classes, and rounds that say the same."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unsum.equation.noise import Noise, factorize, measure_noise
from unsum.equation.observation import Observation, observed
from unsum.head import Head
from unsum.losses import StackedCrossEntropy


def of_equal_weights(groups: list[list[Head]]) -> list[list[Head]]:
    """Groups joined whose first heads are equal: the same weights on the same batch send the same gradient."""
    joined: list[list[Head]] = []
    for group in groups:
        same = next((other for other in joined if _equal(other[0], group[0])), None)
        if same is None:
            joined.append(list(group))
        else:
            same.extend(group)
    return joined


def _equal(one: Head, other: Head) -> bool:
    if not torch.equal(one.W, other.W) or (one.b is None) != (other.b is None):
        return False
    return one.b is None or other.b is None or torch.equal(one.b, other.b)


def merged(group: list[Head]) -> Head:
    """Rounds that say the same as one: the mean of their gradients where noise was added, else any of them."""
    first = group[0]
    if len(group) == 1 or not any(measure_noise(head).added for head in group):
        return first
    biases = [head.b for head in group if head.b is not None]
    gradients = [head.grad_b for head in group if head.grad_b is not None]
    return replace(
        first,
        W=_mean([head.W for head in group], first.W),
        b=_mean(biases, first.W) if len(biases) == len(group) else first.b,
        grad_W=_mean([head.grad_W for head in group], first.W),
        grad_b=_mean(gradients, first.W) if len(gradients) == len(group) else None,
    )


def _mean(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack([part.double() for part in parts]).mean(0).to(like)


def stack(heads: list[Head]) -> Head:
    """One head of all rounds' classes; a bias counts only where every round has one."""
    biases = [head.b for head in heads if head.b is not None]
    gradients = [head.grad_b for head in heads if head.grad_b is not None]
    return replace(
        heads[0],
        W=torch.cat([head.W for head in heads]),
        b=torch.cat(biases) if len(biases) == len(heads) else None,
        grad_W=torch.cat([head.grad_W for head in heads]),
        grad_b=torch.cat(gradients) if len(gradients) == len(heads) else None,
    )


def observe_stacked(head: Head, heads: list[Head], batch_size: int | None) -> Observation:
    """What all rounds say: rows in units of their own noise, so that a loud round does not turn the basis."""
    every = [measure_noise(one) for one in heads]
    noise = Noise(
        torch.cat([one.level for one in every]), any(one.added for one in every), max(one.relative for one in every)
    )
    return observed(head, factorize(head, noise, batch_size), noise, StackedCrossEntropy(len(heads)))


def rescaled(observation: Observation, factors: Tensor) -> Observation:
    """Each round's gradient times its own factor (n,): that of rounds whose gradients were multiplied differently."""
    rows = factors.repeat_interleave(observation.classes // len(factors))
    noise = replace(observation.noise, level=observation.noise.level * rows)
    grad_b = None if observation.grad_b is None else observation.grad_b * rows
    return replace(
        observation, U=observation.U * rows[:, None], grad_b=grad_b, noise=noise, weight=observation.weight / rows
    )
