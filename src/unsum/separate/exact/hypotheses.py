"""What the batch may look like: labels hard or soft, scale and smoothing known or not, from simple to general."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.equation.observation import Observation
from unsum.separate.exact.regression import ClassLine


@dataclass(frozen=True)
class Hypothesis:
    """One way the batch may look: targets known or open, and which of scale and smoothing are free."""

    Y: Tensor | None  # (B, C) before smoothing; None: read off the solution
    B: int
    scale: float
    scale_free: bool
    floor_free: bool


def hypotheses(
    observation: Observation, line: ClassLine, targets: Tensor | None, batch_size: int | None
) -> Iterator[Hypothesis]:
    """From the simplest to the most general."""
    size = observation.rank if batch_size is None else batch_size
    Y = targets.to(observation.b.device) if targets is not None else hard_targets(line, size, 0.3)
    if Y is None and batch_size is None:
        Y = more_samples_than_directions(line, size)
    B = size if Y is None else len(Y)
    guess = line.scale if observation.reduction == "mean" else line.scale / B
    if Y is not None and guess > 0 and abs(math.log(guess)) < 0.05:
        yield Hypothesis(Y, B, 1.0, False, False)
    if Y is not None and targets is None and guess < 1:
        yield Hypothesis(Y, B, 1.0, False, True)
    if Y is not None:
        yield Hypothesis(Y, B, guess, True, False)
    if Y is not None and targets is None:
        yield Hypothesis(Y, B, guess, True, True)
    if targets is None:  # soft: one sample per direction, for open targets and more samples would explain anything
        yield Hypothesis(None, size, 1.0, False, True)
        yield Hypothesis(None, size, line.scale if observation.reduction == "mean" else line.scale / size, True, True)


def hard_targets(line: ClassLine, B: int, tolerance: float) -> Tensor | None:
    """One-hot rows sorted by class, if the label rows' masses are whole numbers of samples."""
    mass = line.mass * B
    counts = mass.round().long().clamp_min(0)
    if int(counts.sum()) != B or float((mass - counts).abs().max()) > tolerance:
        return None
    labels = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return torch.nn.functional.one_hot(labels, len(counts)).double()


def more_samples_than_directions(line: ClassLine, R: int) -> Tensor | None:
    """Hard labels of a larger batch: equal samples or dependent features take away directions, but not counts."""
    for B in range(R + 1, 4 * R + 1):
        Y = hard_targets(line, B, 0.02)
        if Y is not None:
            return Y
    return None
