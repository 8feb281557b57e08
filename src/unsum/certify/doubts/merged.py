"""Samples that look like one: so alike that the gradient does not show them apart.

Two samples f ± δ‖f‖u of equal label differ from two copies of f, to leading order, by α δ²‖f‖² (J W u) uᵀ in ∇W, with J the
curvature of the loss by the logits. That is quadratic in δ: features may differ far more than the precision before a second
direction rises above the noise. A sample that stands for two carries twice the weight of its neighbors and gives itself away
(`nuisance`); but where every sample stands for equally many, as two augmented views of each do, a mean is the same. Nobody who
is not told the batch size can exclude it. More than two share that term among their own directions, n of them among n − 1: each
direction carries less of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from scipy.special import erfinv
from scipy.stats import chi2
from torch import Tensor

from unsum.certify.question import Question
from unsum.equation.noise import FALSE_ALARM
from unsum.head import Head

_TRUSTED_SPREAD = 1e-2  # relative difference from the mean from which a claim would be false
_TOGETHER = 10  # samples at most that are taken to look like one
_CHANCE = 3.0  # deviations by which noise may lie against a direction
_PROPORTIONAL = 1e-4  # of a cosine from 1 within which features are proportional


def doubt_groups(groups: list[list[int]]) -> list[str]:
    """Samples of one label that were found, but of which only the mean is known."""
    return [
        f"Samples {', '.join(map(str, group))} cannot be told apart at the gradient's precision; each is their mean."
        for group in groups
    ]


def doubt_merged(question: Question) -> list[str]:
    """The doubt that every sample stands for several of its label, none of which was found by itself."""
    if question.batch_size is not None:
        return []
    doubts = _doubt_proportional(question)
    spread = hidden_spread(question)
    if spread > _TRUSTED_SPREAD:
        apart = f"that differ by less than {100 * spread:.2g} %" if spread < 1 else "however different"
        doubts.append(f"Samples of one label, {apart}, would look like one here: there may be more than were found.")
    return doubts


def hidden_spread(question: Question) -> float:
    """The largest relative δ at which a few samples may pass as one, for directions u that are nothing special.

    What is left of ∇W outside the span of A holds the second directions, if there are any: none of its rows is larger than the
    row that is left, and all rows together no larger than its largest singular value.
    """
    head, observation, candidate = question.head, question.observation, question.candidate
    R, H = observation.A.shape
    if R >= H:
        return math.inf
    rest = Rest.of(head, observation.A, observation.U)
    size = candidate.at.T.square().sum(1, keepdim=True)  # ‖f‖²
    logits = candidate.at.T @ observation.K + observation.b
    answer = observation.loss.response(logits, candidate.Y, head.W, observation.row_norms)  # (B, C): ‖(J W)_c‖
    response = float(candidate.at.alpha) * size * answer / H**0.5 * (1 - R / H) ** 0.5  # of a usual u, outside
    by_row = float((rest.norms / response.clamp_min(1e-300)).amin(1).max())
    spread = (_share(observation.classes - 1) * by_row) ** 0.5
    if spread <= _TRUSTED_SPREAD or math.isinf(spread):
        return spread
    strength = response / rest.deviation  # (B, C) in units of what is left
    rows = strength.square().sum(1).square() / strength.pow(4).sum(1).clamp_min(1e-300)  # that answer, effectively
    shares = torch.tensor([_joint_share(max(1, int(n))) for n in rows.tolist()]).to(strength)
    together = (rest.largest + _CHANCE) * shares / strength.norm(dim=1).clamp_min(1e-300)
    return min(spread, float(together.max()) ** 0.5)


@dataclass(frozen=True)
class Rest:
    """What is left of ∇W outside the span of A, row by row."""

    head: Head
    A: Tensor
    U: Tensor
    norms: Tensor  # (C,)

    @classmethod
    def of(cls, head: Head, A: Tensor, U: Tensor) -> Rest:
        norms = torch.cat([(head.grad_W[rows].double() - U[rows] @ A).norm(dim=1) for rows in head.row_blocks()])
        # A row of zeros is known to the precision of the others.
        return cls(head, A, U, norms.clamp_min(1e-9 * norms.max() + 1e-300))

    @property
    def deviation(self) -> Tensor:
        """(C,) of an entry."""
        R, H = self.A.shape
        return self.norms / (H - R) ** 0.5

    @cached_property
    def largest(self) -> float:
        """The largest singular value, rows in units of their deviation."""
        C = len(self.norms)
        gram = torch.zeros(C, C, dtype=torch.float64, device=self.U.device)
        for columns in self.head.column_blocks():
            block = (self.head.grad_W[:, columns].double() - self.U @ self.A[:, columns]) / self.deviation[:, None]
            gram.addmm_(block, block.T)
        return float(torch.linalg.eigvalsh(gram)[-1].clamp_min(0).sqrt())


@lru_cache(maxsize=256)
def _share(rows: int) -> float:
    """(n − 1)/x for the worst n; the largest answer of some rows to n − 1 directions exceeds x but for a false alarm."""
    shares = []
    for n in range(2, _TOGETHER + 1):
        least = 2**0.5 * float(erfinv(FALSE_ALARM ** (1 / (max(rows, 1) * (n - 1)))))
        shares.append((n - 1) / least)
    return max(shares)


@lru_cache(maxsize=1024)
def _joint_share(rows: int) -> float:
    """The same for the norm of all answers to one direction: n samples share it among n − 1."""
    shares = []
    for n in range(2, _TOGETHER + 1):
        answers = rows * (n - 1)
        shares.append((n - 1) ** 0.5 / (float(chi2.ppf(FALSE_ALARM, answers)) / answers) ** 0.5)
    return max(shares)


def _doubt_proportional(question: Question) -> list[str]:
    """Two samples with proportional features and different labels pass for one with a mixed label, and it for them."""
    observation, T, labels = question.observation, question.candidate.at.T, question.candidate.Y.argmax(1)
    if len(T) <= observation.rank or observation.rank == observation.A.shape[1]:
        return []
    unit = T / T.norm(dim=1, keepdim=True).clamp_min(1e-300)
    alike = (unit @ unit.T > 1 - _PROPORTIONAL) & (labels[:, None] != labels)
    named = ", ".join(map(str, alike.any(1).nonzero()[:, 0].tolist()))
    return [f"Samples {named} have proportional features: some may be one with a mixed label."] if named else []
