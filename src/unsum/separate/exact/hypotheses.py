"""What a search knows before it starts, and what the batch may look like: from simple to
general."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from unsum.equation.equation import Equation
from unsum.equation.levenberg import seconds_per_iteration
from unsum.equation.observation import Observation
from unsum.separate.exact.regression import ClassLine

# or granted ones
HARD = ("labels", "labels, smoothed", "labels, scaled", "labels, smoothed and scaled")
SOFT = ("soft labels", "soft labels, scaled")
WHOLE = 0.3  # of a sample that the mass of a label row may be off, to be a number of samples
PLAIN_SCALE = 0.05  # in logarithms, of a scale that is tried as 1
_PEAKED = 20.0  # largest over median probability of an unlabeled class


@dataclass(frozen=True)
class Hypothesis:
    """One way the batch may look: targets known or open, and which of scale and smoothing are
    free."""

    Y: Tensor | None  # (B, C) before smoothing; None: read off the solution
    B: int
    scale: float
    scale_free: bool
    floor_free: bool

    @property
    def rigid(self) -> bool:
        """Whether label rows tell every sample's start, as labels of their own do: there is one
        point to start from, then."""
        return self.Y is not None and int(torch.linalg.matrix_rank(self.Y)) == self.B

    def determined(self, observation: Observation, line: ClassLine) -> bool:
        """Whether there are as many equations as unknowns: fewer are solved by anything, and say
        nothing."""
        labeled = 0 if self.Y is not None else int(line.labeled.sum())
        rows = min(observation.classes - labeled, observation.classes - 1)
        columns = observation.rank + (observation.grad_b is not None)
        return rows * columns >= self.B * observation.rank + self.scale_free + self.floor_free

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
    Y = targets.to(observation.b.device) if targets is not None else hard_targets(line, size, WHOLE)
    if Y is None and batch_size is None:
        # A larger batch: equal samples or dependent features take away directions, not counts.
        larger = (hard_targets(line, B, 0.02) for B in range(size + 1, 4 * size + 1))
        Y = next((rows for rows in larger if rows is not None), None)
    B = size if Y is None else len(Y)
    guess = line.scale if observation.reduction == "mean" else line.scale / B
    if Y is not None:
        if guess > 0 and abs(math.log(guess)) < PLAIN_SCALE:
            yield HARD[0], Hypothesis(Y, B, 1.0, False, False)
        if targets is None and guess < 1:
            yield HARD[1], Hypothesis(Y, B, 1.0, False, True)
        yield HARD[2], Hypothesis(Y, B, guess, True, False)
        if targets is None:
            yield HARD[3], Hypothesis(Y, B, guess, True, True)
    # soft: one sample per direction, for open targets and more samples would explain anything
    if targets is None:
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


@dataclass(frozen=True)
class Known:
    """All that decides which starts apply."""

    observation: Observation
    line: ClassLine
    targets: Tensor | None
    batch_size: int | None

    @cached_property
    def hypotheses(self) -> dict[str, Hypothesis]:
        """By name, those with equations enough."""
        every = hypotheses(self.observation, self.line, self.targets, self.batch_size)
        return {name: way for name, way in every if way.determined(self.observation, self.line)}

    @property
    def near_classes(self) -> bool:
        """Whether there are too many samples for one to be found alone; most starts lose their way
        there."""
        return 2 * self.observation.rank > self.observation.classes

    @property
    def full(self) -> bool:
        """Whether the gradient has all directions that it can have: there may be any number of
        samples more."""
        return self.observation.rank >= self.observation.classes - 1

    @cached_property
    def peaked(self) -> bool:
        """Whether some unlabeled class is far more likely than most: a trained model, where the
        line fits badly."""
        grad_b = self.observation.grad_b
        if grad_b is None or not bool((grad_b > 0).any()):
            return False
        likely = grad_b[grad_b > 0]
        return float(likely.max() / likely.median()) > _PEAKED

    @cached_property
    def more_negative_than_labels(self) -> bool:
        """Whether more rows of ∇b are negative than there are samples: smoothing does that to a
        trained model."""
        grad_b = self.observation.grad_b
        return grad_b is not None and int((grad_b < 0).sum()) > self.observation.rank

    def seconds(self, iterations: int) -> float:
        """Estimated, of solving for all samples at once."""
        return iterations * seconds_per_iteration(
            self.observation.rank**2, self.observation.classes
        )
