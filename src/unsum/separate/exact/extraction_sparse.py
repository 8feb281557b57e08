"""Samples of a crowded batch extracted one after another, by the zeros of their features: for trained models, 2B ≥ C.

What `extraction` does for fewer samples than half the classes, with `sparse_single` to find each of them. Every sample found
and subtracted takes one direction from the unknowns and gives one more equation to the others, so that the first few are the
hard ones; as soon as fewer than half the classes are left, `extraction` takes the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.deadline import out_of_time
from unsum.equation.equation import positive_factor
from unsum.equation.observation import Observation
from unsum.separate.exact.extraction import SAME_SAMPLE, Extracted, extract, label_weights, snapped
from unsum.separate.exact.single import SingleSamples
from unsum.separate.exact.sparse_single import SparseSamples, Wells
from unsum.separate.exact.starts import ratio_starts

_WELLS = (Wells(1e-3, 1.0, 3.0), Wells(1e-2, 1.0, 10.0), Wells(1e-4, 1.0, 1.0), Wells(1e-3, 3.0, 1.0))
_MOVED = (0.0, 0.5, 1.0)  # of the ratios' spread, that starts are moved by after so many turns through the wells
_SPARE = 16  # equations more than unknowns, and zeros, that a sample must have
_CLEAN, _BLURRED = 15.0, 100.0  # roundings that α q·t may be off where it counts
_MISFIT = 60.0  # as many of them as a misfit of one counts for: samples that are right stay far below it
_RESHARPENED = 1e-4  # width that samples found before are sharpened from again
_NOISY = 1e-5  # relative noise beyond which no entry can be told from zero
_WORK = 1e12  # floating-point operations of one hunt beyond which it is not tried
_HUNT = 220  # iterations that one takes


def extract_sparse(observation: Observation, generator: torch.Generator) -> Extracted | None:
    """As many samples of hard label as can be found, at most R; None where it cannot be tried, or the first is not found."""
    grad_b = observation.grad_b
    R, H = observation.A.shape
    if (
        grad_b is None
        or observation.noise.relative > _NOISY
        or observation.classes <= R
        or not bool((grad_b != 0).all())
    ):
        return None
    if 2 * R > H or 2.0 * _HUNT * R * R * H * R > _WORK:
        return None
    found = _Found(observation, grad_b, generator)
    while found.missing and not out_of_time("samples by the zeros of their features") and found.hunt():
        pass
    if len(found.T) == 0:
        return None
    rest = extract(found.left.observation) if found.missing > 0 and observation.classes > 2 * found.missing else None
    if rest is None or len(rest.T) < found.missing:  # a part of the rest may hold false ones, and nothing would tell
        return Extracted(found.T, found.labels, found.alpha, 0.0)
    T, labels = torch.cat([found.T, rest.T @ found.left.basis]), torch.cat([found.labels, rest.labels])
    return Extracted(T, labels, found.alpha, 0.0)


@dataclass(frozen=True)
class _Left:
    """What some samples leave: an observation of fewer directions, and those in the whole one's (R − n, R)."""

    observation: Observation
    basis: Tensor


class _Found:
    """The samples found so far, and what they leave."""

    def __init__(self, observation: Observation, grad_b: Tensor, generator: torch.Generator) -> None:
        self.whole, self.generator = observation, generator
        sizes = (observation.U / grad_b[:, None]).norm(dim=1)
        self.size = float(sizes.median()) / observation.A.shape[1] ** 0.5
        self.T, self.labels = observation.U[:0], observation.U[:0, 0].long()
        self.alpha = observation.alpha(1.0, observation.rank)
        self.left = _Left(observation, torch.eye(observation.rank, dtype=self.T.dtype, device=self.T.device))

    @property
    def missing(self) -> int:
        return self.whole.rank - len(self.T)

    def hunt(self) -> bool:
        """Look for samples in what is left, wells after wells, until some turn up; whether any did.

        The cleanest first: an error in what is subtracted disturbs whatever is sought after it.
        """
        for moved in _MOVED if len(self.T) else _MOVED[:1]:
            blurred: list[tuple[Tensor, Tensor]] = []
            for wells in _WELLS:
                T, labels, off = self._hunted(*self._starts(moved, everywhere=moved > 0), wells)
                if bool((off < _CLEAN).any()):
                    self._take(T[off < _CLEAN], labels[off < _CLEAN])
                    return True
                blurred.append((T, labels))
            most = max(blurred, key=lambda found: len(found[0]))
            if len(most[0]):
                self._take(*most)
                return True
        return False

    def _starts(self, moved: float, everywhere: bool) -> tuple[Tensor, Tensor]:
        """The ratios of the rows that are surely labels, or of all of them."""
        left = self.left.observation
        grad_b = _bias(left)
        labels = (torch.ones_like(grad_b) if everywhere else grad_b < 0).nonzero()[:, 0]
        return ratio_starts(left, grad_b, labels, self.generator, moved), labels

    def _hunted(self, T: Tensor, labels: Tensor, wells: Wells) -> tuple[Tensor, Tensor, Tensor]:
        """What the hunt finds from these starts, if it is a sample, with how far off α q·t is in units of its rounding."""
        if len(T) == 0:
            return T, labels, T[:, 0]
        left = self.left.observation
        samples = SparseSamples(left, _bias(left), self.size)
        singles = SingleSamples(left, label_weights(left, _bias(left)))
        T = samples.hunt(T, labels, wells)
        misfits, zeros, couplings = singles.misfits(T, labels), samples.zeros(T), singles.couplings(T, labels)
        spare = zeros + self.whole.classes - 2 * self.missing
        good = samples.positive(T) & (spare >= _SPARE) & (zeros >= _SPARE)
        if len(self.T) == 0 and bool(good.any()):
            self.alpha = snapped(positive_factor(1 / float(couplings[good].median())), self.whole)
        off = (self.alpha * couplings - 1).abs() * self._left_over(T, labels) / self._precision
        off = torch.maximum(off, _MISFIT * misfits)
        good &= off < _BLURRED
        kept: list[int] = []
        for index in torch.where(good, off, torch.inf).argsort()[: int(good.sum())].tolist():
            same = (T[kept] - T[index]).norm(dim=1) < SAME_SAMPLE * T[index].norm()
            if not bool(same.any()):
                kept.append(index)
        kept = kept[: self.missing]
        return T[kept] @ self.left.basis, labels[kept], off[kept]

    @property
    def _precision(self) -> float:
        return self.whole.client_precision + self.whole.noise.relative

    def _left_over(self, T: Tensor, labels: Tensor) -> Tensor:
        """(n,) 1 − p_y: the smaller it is, the less a sample's error disturbs what it is subtracted from."""
        observation = self.left.observation
        P = torch.softmax(T @ observation.K + observation.b, dim=1)
        return 1 - P[torch.arange(len(T), device=T.device), labels]

    def _take(self, T: Tensor, labels: Tensor) -> None:
        """Add samples, sharpened in the whole gradient where that makes them better: errors of the first must not add up."""
        if len(T) == 0:
            return
        sharp = SparseSamples(self.whole, _bias(self.whole), self.size).sharpen(T, labels, _RESHARPENED)
        singles = SingleSamples(self.whole, label_weights(self.whole, _bias(self.whole)))
        off, off_sharp = ((self.alpha * singles.couplings(t, labels) - 1).abs() for t in (T, sharp))
        T = torch.where((off_sharp < off)[:, None], sharp, T)
        self.T, self.labels = torch.cat([self.T, T]), torch.cat([self.labels, labels])
        self.left = self._without()

    def _without(self) -> _Left:
        """The observation without the samples found: their part subtracted, and the directions that are left."""
        whole, T = self.whole, self.T
        E = torch.softmax(T @ whole.K + whole.b, dim=1)
        E = E - torch.nn.functional.one_hot(self.labels, whole.classes)
        U, grad_b = whole.U - self.alpha * E.T @ T, _bias(whole) - self.alpha * E.sum(0)
        weight = whole.weight.clamp_max(10 * whole.weight.median())
        basis = torch.linalg.svd(weight[:, None] * U, full_matrices=False)[2][: whole.rank - len(T)]
        return _Left(replace(whole, U=U @ basis.T, A=basis @ whole.A, K=basis @ whole.K, grad_b=grad_b), basis)


def _bias(observation: Observation) -> Tensor:
    assert observation.grad_b is not None
    return observation.grad_b
