"""What a search knows before it starts: the observation, the line through its classes, and what the attacker was granted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from unsum.equation.levenberg import seconds_per_iteration
from unsum.equation.observation import Observation
from unsum.separate.exact.hypotheses import Hypothesis, hypotheses
from unsum.separate.exact.regression import ClassLine

_PEAKED = 20.0  # largest over median probability of an unlabeled class


@dataclass(frozen=True)
class Known:
    """All that decides which starts apply."""

    observation: Observation
    line: ClassLine
    targets: Tensor | None
    batch_size: int | None

    @cached_property
    def hypotheses(self) -> dict[str, Hypothesis]:
        return dict(hypotheses(self.observation, self.line, self.targets, self.batch_size))

    @property
    def near_classes(self) -> bool:
        """Whether there are too many samples for one to be found alone; most starts lose their way there."""
        return 2 * self.observation.rank > self.observation.classes

    @cached_property
    def peaked(self) -> bool:
        """Whether some unlabeled class is far more likely than most: a trained model, where the line fits badly."""
        grad_b = self.observation.grad_b
        if grad_b is None or not bool((grad_b > 0).any()):
            return False
        likely = grad_b[grad_b > 0]
        return float(likely.max() / likely.median()) > _PEAKED

    @cached_property
    def more_negative_than_labels(self) -> bool:
        """Whether more rows of ∇b are negative than there are samples: smoothing does that to a trained model."""
        grad_b = self.observation.grad_b
        return grad_b is not None and int((grad_b < 0).sum()) > self.observation.rank

    def seconds(self, iterations: int) -> float:
        """Estimated, of solving for all samples at once."""
        return iterations * seconds_per_iteration(self.observation.rank**2, self.observation.classes)
