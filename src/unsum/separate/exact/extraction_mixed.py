"""Samples with mixed labels, extracted one after another: for trained models under mixup.

A target (1 − μ) e_y + μ e_z leaves p − e_y + μ (e_y − e_z) in the span of U: for a pair of classes that is a sample's own
equation with one more unknown, μ, which is linear. The classes that stand out of ∇b are paired in all ways, and the ratios
∇W_y / ∇b_y of both rows, and the mean of these, are starts. What is found is subtracted, and others come to light. A class that
one sample's prediction hides behind another's label does not stand out: where few are missing, any class may be the second.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.deadline import out_of_time
from unsum.equation.equation import positive_factor
from unsum.equation.observation import Observation
from unsum.separate.exact.extraction import ROUNDS, Remainder, distinct, snapped
from unsum.separate.exact.starts import hunt_corners

_ROWS = 2  # times as many classes as samples are missing are paired
_MOST, _CLASSES = 32, 4096  # samples and classes: pairs are many
_FIRST = 8  # steps of all starts
_PART, _FEW = 6, 200  # then a sixth of them goes on, but this many at least
_PAIRS = 6000  # of a class that stands out with any
_SLACK = 1e-3  # of a share, beyond 0 and 1


def extract_mixed(observation: Observation) -> tuple[Tensor, Tensor, float] | None:
    """T (n, R), targets (n, C) and the common factor α of as many samples of mixed label as can be found, at most R.

    None where the equations do not allow to try, or nothing is found.
    """
    R, C = observation.rank, observation.classes
    if observation.grad_b is None or observation.noise.added:
        return None
    if not (1 < R <= _MOST and 2 * R + 2 <= C <= _CLASSES):
        return None
    left = _Mixed(observation, observation.grad_b)
    for _ in range(ROUNDS):
        if (
            left.missing == 0
            or out_of_time("samples of mixed labels")
            or not any(left.find(starts()) for starts in (left.corners, left.pairs, left.pairs_with_any))
        ):
            break
    return None if left.alpha is None or len(left.T) == 0 else (left.T, left.Y, left.alpha)


class _Mixed(Remainder):
    """The samples found have targets Y (n, C) of two classes each."""

    def __init__(self, observation: Observation, grad_b: Tensor) -> None:
        super().__init__(observation, grad_b)
        self.Y = observation.U.new_zeros(0, observation.classes)
        self.alpha: float | None = None  # the first samples found tell it

    def find(self, starts: tuple[Tensor, Tensor]) -> bool:
        """Refine all starts, keep those that are samples and new, and subtract them; whether any was found."""
        T, pairs = starts
        if len(T) == 0:
            return False
        T = self.singles.refine(T, pairs, self.alpha, _FIRST)
        # Most pairs are of no sample: only the part goes on that came nearest to the span.
        outside = self.singles.outside(T, pairs).nan_to_num(nan=torch.inf)
        chosen = outside.argsort()[: max(_FEW, len(T) // _PART)]
        T, pairs = self.singles.refine(T[chosen], pairs[chosen], self.alpha), pairs[chosen]
        couplings, amounts = self.singles.couplings(T, pairs), self.singles.amounts(T, pairs)
        misfits = self.singles.misfits(T, pairs).nan_to_num(nan=torch.inf)
        good = self.are_samples(T, pairs) & (couplings > 0)
        good &= (amounts > -_SLACK) & (amounts < 1 + _SLACK)
        if not bool(good.any()):
            return False
        if self.alpha is None:
            self.alpha = snapped(positive_factor(1 / float(couplings[good].median())), self.observation)
        good &= (self.alpha * couplings - 1).abs() < 10 * self.singles.slack(T, pairs, faint=False)
        # Whatever their classes are: one sample may be found with several seconds of almost no share.
        of_any = torch.zeros_like(pairs[:, 0])
        kept = distinct(T, of_any, misfits, good, self.T, of_any.new_zeros(len(self.T)))[: self.missing]
        if kept:
            Y = self.Y.new_zeros(len(kept), self.observation.classes)
            Y.scatter_(1, pairs[kept], torch.stack([1 - amounts[kept], amounts[kept]], dim=1))
            self.subtract(T[kept], Y, self.alpha)
            self.Y = torch.cat([self.Y, Y])
        return bool(kept)

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


def _sound(T: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    finite = torch.isfinite(T).all(1)
    return T[finite], pairs[finite]
