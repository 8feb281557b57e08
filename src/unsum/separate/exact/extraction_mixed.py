"""Samples with mixed labels, extracted one after another: for trained models under mixup.

A target (1 − μ) e_y + μ e_z leaves p − e_y + μ (e_y − e_z) in the span of U: for a pair of classes that is a sample's own
equation with one more unknown, μ, which is linear. The classes that stand out of ∇b are paired in all ways, and the ratios
∇W_y / ∇b_y of both rows, and the mean of these, are starts. What is found is subtracted, and others come to light. A class that
one sample's prediction hides behind another's label does not stand out: where few are missing, any class may be the second.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.deadline import out_of_time
from unsum.equation.equation import positive_factor
from unsum.equation.observation import Observation
from unsum.separate.exact.extraction import ACCEPTED, ROUNDS, SAME_SAMPLE, USUAL, label_weights, snapped
from unsum.separate.exact.simplex import hunt_corners
from unsum.separate.exact.single import SingleSamples

_ROWS = 2  # times as many classes as samples are missing are paired
_MOST, _CLASSES = 32, 4096  # samples and classes: pairs are many
_FIRST = 8  # steps of all starts
_PART, _FEW = 6, 200  # then a sixth of them goes on, but this many at least
_PAIRS = 6000  # of a class that stands out with any
_SLACK = 1e-3  # of a share, beyond 0 and 1


@dataclass(frozen=True)
class Mixed:
    """Samples found on their own: T (n, R), their targets (n, C), and the factor α that they share."""

    T: Tensor
    Y: Tensor
    alpha: float


def extract_mixed(observation: Observation) -> Mixed | None:
    """As many samples of mixed label as can be found, at most R; None where the equations do not allow to try."""
    R, C = observation.rank, observation.classes
    if observation.grad_b is None or observation.noise.added:
        return None
    if not (1 < R <= _MOST and 2 * R + 2 <= C <= _CLASSES):
        return None
    left = _Remainder(observation, observation.grad_b)
    for _ in range(ROUNDS):
        if (
            left.missing == 0
            or out_of_time("samples of mixed labels")
            or not any(left.find(starts()) for starts in (left.corners, left.pairs, left.pairs_with_any))
        ):
            break
    return Mixed(left.T, left.Y, left.alpha or 1.0)


class _Remainder:
    """What is left of the gradient after the samples found so far."""

    def __init__(self, observation: Observation, grad_b: Tensor) -> None:
        self.observation = observation
        self.U, self.grad_b = observation.U, grad_b
        self.T, self.Y = observation.U[:0], observation.U.new_zeros(0, observation.classes)
        self.singles = SingleSamples(observation, label_weights(observation, grad_b))
        self.usual = (observation.U.norm(dim=1) / grad_b.abs()).median()
        self.alpha: float | None = None  # the first samples found tell it

    @property
    def missing(self) -> int:
        return self.observation.rank - len(self.T)

    def find(self, starts: tuple[Tensor, Tensor]) -> bool:
        """Refine all starts, keep those that are samples and new, and subtract them; whether any was found."""
        T, pairs = starts
        if len(T) == 0:
            return False
        T, pairs = self._promising(self.singles.refine(T, pairs, self.alpha, _FIRST), pairs)
        T = self.singles.refine(T, pairs, self.alpha)
        couplings, amounts = self.singles.couplings(T, pairs), self.singles.amounts(T, pairs)
        misfits = self.singles.misfits(T, pairs).nan_to_num(nan=torch.inf)
        good = (misfits < ACCEPTED) & (self.singles.outside(T, pairs) < self.singles.slack(T, pairs, faint=False))
        good &= (T.norm(dim=1) < USUAL * self.usual) & (couplings > 0)
        good &= (amounts > -_SLACK) & (amounts < 1 + _SLACK)
        if not bool(good.any()):
            return False
        if self.alpha is None:
            self.alpha = snapped(positive_factor(1 / float(couplings[good].median())), self.observation)
        good &= (self.alpha * couplings - 1).abs() < 10 * self.singles.slack(T, pairs, faint=False)
        kept: list[int] = []
        for index in misfits.argsort().tolist():
            same = torch.cat([self.T, T[kept]])
            distances = (same - T[index]).norm(dim=1) / T[index].norm()
            if good[index] and not bool((distances < SAME_SAMPLE).any()):
                kept.append(index)
        kept = kept[: self.missing]
        if kept:
            self._subtract(T[kept], pairs[kept], amounts[kept])
        return bool(kept)

    def _promising(self, T: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """The part of the starts that came nearest to the span: most pairs are of no sample."""
        outside = self.singles.outside(T, pairs).nan_to_num(nan=torch.inf)
        chosen = outside.argsort()[: max(_FEW, len(T) // _PART)]
        return T[chosen], pairs[chosen]

    def pairs(self) -> tuple[Tensor, Tensor]:
        """(n, R) ratios of the rows that stand out, and (n, 2) the classes that are paired for each."""
        rows, ratios = self._outstanding(_ROWS * self.missing + 2)
        a, b = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
        pairs = torch.stack([rows[a], rows[b]], dim=1).repeat(3, 1)
        return _sound(torch.cat([ratios[a], ratios[b], (ratios[a] + ratios[b]) / 2]), pairs)

    def corners(self) -> tuple[Tensor, Tensor]:
        """Classes that nobody carries are mixtures of the samples: near their corners the sample's prediction is one label."""
        rows, _ = self._outstanding(_ROWS * self.missing + 2)
        free = self.grad_b > 0
        free[rows] = False
        ratios = self.U[free] / self.grad_b[free][:, None]
        if len(ratios) <= self.missing:
            return self.U[:0], rows[:0, None].expand(0, 2)
        T = ratios[hunt_corners(ratios, self.missing)]
        first = torch.softmax(T @ self.observation.K + self.observation.b, dim=1).argmax(1)
        pairs = torch.stack([first[:, None].expand(-1, len(rows)), rows.expand(len(T), -1)], dim=2).flatten(0, 1)
        other = pairs[:, 0] != pairs[:, 1]
        return _sound(T.repeat_interleave(len(rows), 0)[other], pairs[other])

    def pairs_with_any(self) -> tuple[Tensor, Tensor]:
        """The same with every other class as the second."""
        C = self.observation.classes
        rows, ratios = self._outstanding(min(_ROWS * self.missing + 2, _PAIRS // C))
        a, second = torch.meshgrid(torch.arange(len(rows)), torch.arange(C), indexing="ij")
        a, second = a.flatten().to(rows.device), second.flatten().to(rows.device)
        other = rows[a] != second
        return _sound(ratios[a[other]], torch.stack([rows[a], second], dim=1)[other])

    def _outstanding(self, count: int) -> tuple[Tensor, Tensor]:
        """The rows with the most of ∇b, and their ratios."""
        rows = self.grad_b.abs().topk(min(count, len(self.grad_b))).indices
        return rows, self.U[rows] / self.grad_b[rows][:, None]

    def _subtract(self, T: Tensor, pairs: Tensor, amounts: Tensor) -> None:
        assert self.alpha is not None
        Y = self.Y.new_zeros(len(T), self.observation.classes)
        Y.scatter_(1, pairs, torch.stack([1 - amounts, amounts], dim=1))
        E = torch.softmax(T @ self.observation.K + self.observation.b, dim=1) - Y
        self.U = self.U - self.alpha * E.T @ T
        self.grad_b = self.grad_b - self.alpha * E.sum(0)
        self.T, self.Y = torch.cat([self.T, T]), torch.cat([self.Y, Y])


def _sound(T: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    finite = torch.isfinite(T).all(1)
    return T[finite], pairs[finite]
