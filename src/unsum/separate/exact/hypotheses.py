"""What the batch may look like: labels hard or soft, scale and smoothing known or not, from simple to general."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.equation.equation import Equation
from unsum.equation.observation import Observation
from unsum.separate.exact.regression import ClassLine

HARD = ("labels", "labels, smoothed", "labels, scaled", "labels, smoothed and scaled")  # or granted ones
SOFT = ("soft labels", "soft labels, scaled")


@dataclass(frozen=True)
class Hypothesis:
    """One way the batch may look: targets known or open, and which of scale and smoothing are free."""

    Y: Tensor | None  # (B, C) before smoothing; None: read off the solution
    B: int
    scale: float
    scale_free: bool
    floor_free: bool

    def equation(self, observation: Observation, line: ClassLine) -> Equation:
        equation = observation.equation()
        if self.Y is None:
            equation = equation.with_rows(equation.weight * ~line.labeled)
        return replace(equation, Y=self.Y, alpha_free=self.scale_free, floor_free=self.floor_free)


def hypotheses(
    observation: Observation, line: ClassLine, targets: Tensor | None, batch_size: int | None
) -> Iterator[tuple[str, Hypothesis]]:
    """By name, from the simplest to the most general."""
    size = observation.rank if batch_size is None else batch_size
    Y = targets.to(observation.b.device) if targets is not None else hard_targets(line, size, 0.3)
    if Y is None and batch_size is None:
        Y = more_samples_than_directions(line, size)
    B = size if Y is None else len(Y)
    guess = line.scale if observation.reduction == "mean" else line.scale / B
    if Y is not None and guess > 0 and abs(math.log(guess)) < 0.05:
        yield HARD[0], Hypothesis(Y, B, 1.0, False, False)
    if Y is not None and targets is None and guess < 1:
        yield HARD[1], Hypothesis(Y, B, 1.0, False, True)
    if Y is not None:
        yield HARD[2], Hypothesis(Y, B, guess, True, False)
    if Y is not None and targets is None:
        yield HARD[3], Hypothesis(Y, B, guess, True, True)
    if targets is None:  # soft: one sample per direction, for open targets and more samples would explain anything
        yield SOFT[0], Hypothesis(None, size, 1.0, False, True)
        scale = line.scale if observation.reduction == "mean" else line.scale / size
        yield SOFT[1], Hypothesis(None, size, scale, True, True)


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
