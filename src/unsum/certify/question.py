"""What is laid before the certificate by the head's solvers: the head, what was observed, the
answer, and what was granted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unsum.certify.candidate import Candidate
from unsum.certify.counted import count
from unsum.certify.further import FurtherUnknown, all_others, further_unknowns
from unsum.certify.information import SampleInformation, sample_information
from unsum.equation.equation import Linearized
from unsum.equation.levenberg import can_be_dense
from unsum.equation.observation import Observation
from unsum.head import Head
from unsum.knowledge import Knowledge


@dataclass(frozen=True)
class Question:
    """Is this candidate the batch?"""

    head: Head
    observation: Observation
    candidate: Candidate
    knowledge: Knowledge

    @cached_property
    def here(self) -> Linearized:
        """The equation at the answer."""
        return Linearized(self.candidate.equation, self.candidate.at)

    @cached_property
    def is_dense(self) -> bool:
        """Whether the normal matrix is small enough to be formed."""
        return can_be_dense(self.here.entries, self.here.G.shape[1])

    @cached_property
    def information(self) -> SampleInformation:
        """What is determined of each sample at least, also with each unknown of `FurtherUnknown`
        free."""
        others = all_others(self.here) if self.is_dense else self.nearest[None]
        return sample_information(self.here, further_unknowns(self.here, others))

    @cached_property
    def nearest(self) -> Tensor:
        """(B,) the sample of another label whose features are closest; any, where there is none."""
        T, labels = self.candidate.at.T, self.candidate.Y.argmax(1)
        alike = labels[:, None] == labels
        return torch.cdist(T, T).masked_fill(alike, torch.inf).argmin(1)

    def errors_at_most(self, unknown: FurtherUnknown | None = None) -> float:
        """A bound of the features' largest relative error with free weights, and that unknown free.

        inf where there is no bound.
        """
        misfit, sizes = self.here.cost.new_tensor(self.misfit), self.candidate.at.T.norm(dim=1)
        errors = self.information.error_at_most(unknown, misfit, self.here.cost)
        return float((errors / sizes.clamp_min(1e-300)).max())

    @property
    def batch_size(self) -> int | None:
        return self.knowledge.known_batch_size

    @cached_property
    def each_is_one(self) -> bool:
        """Whether a batch size was granted that leaves a single sample for each of those found,
        whatever they weigh."""
        at, errors = self.candidate.at.T, self.candidate.merged()[1]
        number = count(at, self.candidate.Y.argmax(1), errors, self.knowledge).distinct
        return self.batch_size is not None and number == self.batch_size

    @property
    def misfit(self) -> float:
        """Of the answer in units of the noise, which is estimated on the safe side: at least 1."""
        return max(self.candidate.certificate.misfit, 1.0)

    @property
    def scale(self) -> float:
        """What the gradient had been multiplied by."""
        at, equation = self.candidate.at, self.candidate.equation
        return float(at.alpha) / self.observation.plain_alpha(len(at.T), equation.Y)


def name_some(samples: list[int]) -> str:
    """The first eight of them, and how many more there are."""
    more = f" and {len(samples) - 8} more" if len(samples) > 8 else ""
    return ", ".join(map(str, samples[:8])) + more
