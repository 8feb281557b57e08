"""Samples of a crowded batch extracted one after another, by the zeros of their features: for
trained models, 2B ≥ C.

What `extraction` does for fewer samples than half the classes. Every sample found and subtracted
takes one direction from the unknowns and gives one more equation to the others, so that the first
few are the hard ones; as soon as fewer than half the classes are left, `extraction` takes the rest.

A sample's own equations leave it open here, and the zeros of its features do not. Three things hold
for its t (R unknowns), whatever the other samples are:
- N (softmax(t K + b) − e_y) = 0, where the rows of N are orthogonal to the columns of U: C − R
  equations (`single`);
- t·w = 1 with U w = ∇b, since the bias is a feature that is 1 for everybody, so that T w = 1;
- t A ≥ 0 after a ReLU, and exactly 0 for some of the H features: an equation each, but nobody says
which. Wells around 0 that become narrower draw entries in; a wall keeps them from becoming
negative. α q·t = 1 (`single`) is not used, and remains to check what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.descend import NonlinearProblem, Normal, StoppingRule, descend
from unsum.equation.equation import positive_factor
from unsum.equation.observation import Observation
from unsum.running.deadline import out_of_time
from unsum.separate.exact.extraction import Extracted, distinct, extract, label_weights, snapped
from unsum.separate.exact.single import SingleSamples, in_parts
from unsum.separate.exact.starts import ratio_starts

_UNTRIED = "samples by the zeros of their features"
# [squares of a unit residual; unit slope; weight] depth ν of a well, height of the wall against
# negative features, and weight μ of the softmax, one row for each kind of start.
# Chosen by: arbitrary budget.
_WELLS = ((1e-3, 1.0, 3.0), (1e-2, 1.0, 10.0), (1e-4, 1.0, 1.0), (1e-3, 3.0, 1.0))
# [numbers of a start] below which the calls take most of the time, and all kinds of starts are
# followed together. Chosen by: arbitrary budget.
_TOGETHER = 1 << 15
# [of the ratios' spread] by which starts are moved, turn after turn through the wells.
# Chosen by: arbitrary budget.
_MOVED = (0.0, 0.5, 1.0)
# [equations] more than unknowns, and zeros, that a sample must have. Chosen by: arbitrary margin.
_SPARE = 16
# [roundings] by which α q·t of a clean sample may be off, and of any. Chosen by: arbitrary margin.
_CLEAN, _BLURRED = 15.0, 100.0
# [roundings] that a misfit of one counts as: true samples stay far below it.
# Chosen by: arbitrary margin.
_MISFIT = 60.0
# [of a usual feature] width from which samples found before are sharpened again.
# Chosen by: arbitrary margin.
_RESHARPENED = 1e-4
# [relative noise] beyond which no entry can be told from zero. Chosen by: arbitrary margin.
_NOISY = 1e-5
# [floating-point operations] of one hunt at most, and [iterations] that one takes.
# Chosen by: arbitrary budget.
_WORK, _HUNT = 1e12, 220
# [weight] of t·w = 1 before sharpening and while it goes on, when the softmax determines more: w is
# only as good as the faintest sample. Chosen by: arbitrary margin.
_NORMALIZED, _REFINED_NORMALIZED = 10.0, 1e-2
# [of a usual feature; unit slope] width of the first wells, which have no depth, and their wall.
# Chosen by: arbitrary budget.
_OPENING = (1.0, 0.03)
# [of the width] of the next well, and [of a usual feature] the narrowest one.
# Chosen by: arbitrary budget.
_NARROWING, _NARROWEST = 0.7, 2e-3
# Steps before the wells, in each of them, and at each width of sharpening.
# Chosen by: arbitrary budget.
_OPENING_STEPS, _STEPS = Budget(steps=40, damping=1e-2), Budget(steps=10, damping=1e-2)
_SHARP_STEPS = 3  # [steps] at each width of sharpening. Chosen by: arbitrary budget.
# [unit slope] of the wall, however narrow a well is. Chosen by: arbitrary margin.
_LOWEST_WALL = 0.1
# [weight] of an entry's zero beside the softmax's equations. Chosen by: arbitrary margin.
_ZERO_WEIGHT = 0.1
# [of a usual feature] widths between which entries are told from zeros, and below which an entry is
# zero. Chosen by: arbitrary margin.
_BLUNT, _SHARPEST, _ZERO = 1e-2, 1e-6, 3e-5


def extract_sparse(observation: Observation, generator: torch.Generator) -> Extracted | None:
    """As many samples of hard label as can be found, at most R; None where it cannot be tried, or
    the first is not found."""
    grad_b = observation.grad_b
    R, H = observation.A.shape
    if grad_b is None or not bool((grad_b != 0).all()) or observation.noise.relative > _NOISY:
        return None
    if observation.classes <= R or 2 * R > H or 2.0 * _HUNT * R * R * H * R > _WORK:
        return None
    found = _Found(observation, grad_b, generator)
    while found.missing and not out_of_time(_UNTRIED) and found.hunt():
        pass
    if len(found.T) == 0:
        return None
    rest = (
        extract(found.left)
        if found.missing > 0 and observation.classes > 2 * found.missing
        else None
    )
    # a part of the rest may hold false ones, and nothing would tell
    if rest is None or len(rest.T) < found.missing:
        return Extracted(found.T, found.labels, found.alpha, 0.0)
    T, labels = torch.cat([found.T, rest.T @ found.basis]), torch.cat([found.labels, rest.labels])
    return Extracted(T, labels, found.alpha, 0.0)


class _Found:
    """The samples found so far, and what they leave: an observation of fewer directions, and those
    (R − n, R) in the whole's."""

    def __init__(
        self, observation: Observation, grad_b: Tensor, generator: torch.Generator
    ) -> None:
        self.whole, self.generator = observation, generator
        sizes = (observation.U / grad_b[:, None]).norm(dim=1)
        self.size = float(sizes.median()) / observation.A.shape[1] ** 0.5
        self.T, self.labels = observation.U[:0], observation.U[:0, 0].long()
        self.alpha = observation.alpha(1.0, observation.rank)
        self.left = observation
        self.basis = torch.eye(observation.rank, dtype=self.T.dtype, device=self.T.device)

    @property
    def missing(self) -> int:
        return self.whole.rank - len(self.T)

    def hunt(self) -> bool:
        """Look for samples in what is left, wells after wells, until some turn up; whether any did.

        The cleanest first: an error in what is subtracted disturbs whatever is sought after it.
        """
        for found in self._hunts(_MOVED if len(self.T) else _MOVED[:1]):
            blurred: list[tuple[Tensor, Tensor]] = []
            for T, labels, off in found:
                if bool((off < _CLEAN).any()):
                    self._take(T[off < _CLEAN], labels[off < _CLEAN])
                    return True
                blurred.append((T, labels))
            if out_of_time(_UNTRIED):
                return False
            most = max(blurred, key=lambda part: len(part[0]))
            if len(most[0]):
                self._take(*most)
                return True
        return False

    def _hunts(self, moves: Sequence[float]) -> Iterator[Iterator[tuple[Tensor, Tensor, Tensor]]]:
        """What is found from starts that are moved by each of these; all at once where that takes
        hardly longer than one."""
        R, H = self.left.A.shape
        if R * R * H < _TOGETHER:
            hunted = iter(list(self._hunted([(moved, well) for moved in moves for well in _WELLS])))
            yield from (islice(hunted, len(_WELLS)) for _ in moves)
        else:
            yield from (
                chain.from_iterable(self._hunted([(moved, well)]) for well in _WELLS)
                for moved in moves
            )

    def _hunted(
        self, ways: list[tuple[float, tuple[float, ...]]]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """What is found in each of these ways, of starts that are moved and wells that draw them.

        Starts are the ratios of the rows that are surely labels; moved ones of all rows.
        """
        if out_of_time(_UNTRIED):
            return
        grad_b = _bias(self.left)
        rows = [
            (torch.ones_like(grad_b) if moved else grad_b < 0).nonzero()[:, 0] for moved, _ in ways
        ]
        pairs = zip(rows, ways, strict=True)
        T = torch.cat(
            [
                ratio_starts(self.left, grad_b, own, self.generator, moved)
                for own, (moved, _) in pairs
            ]
        )
        samples, sizes, labels = (
            SparseSamples(self.left, grad_b, self.size),
            [len(own) for own in rows],
            torch.cat(rows),
        )
        if len(T):
            each = torch.tensor(sizes, device=T.device)
            T = samples.hunt(
                T, labels, T.new_tensor([well for _, well in ways]).repeat_interleave(each, dim=0)
            )
        for part, named in zip(T.split(sizes), labels.split(sizes), strict=True):
            yield self._accepted(samples, part, named)

    def _accepted(
        self, samples: SparseSamples, T: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Those where a hunt ended that are samples, with how far off α q·t is in units of its
        rounding."""
        if len(T) == 0:
            return T @ self.basis, labels, T[:, 0]
        left = self.left
        singles = SingleSamples(left, label_weights(left, _bias(left)))
        misfits, f, couplings = (
            singles.misfits(T, labels),
            T @ samples.A,
            singles.state(T, labels).coupling,
        )
        zeros = (f.abs() < _ZERO).sum(1)
        spare = zeros + self.whole.classes - 2 * self.missing
        good = (f.amin(1) > -3 * _ZERO) & (spare >= _SPARE) & (zeros >= _SPARE)
        if len(self.T) == 0 and bool(good.any()):
            self.alpha = snapped(positive_factor(1 / float(couplings[good].median())), self.whole)
        precision = self.whole.client_precision + self.whole.noise.relative
        # The smaller 1 − p_y is, the less a sample's error disturbs what it is subtracted from.
        P = torch.softmax(T @ left.K + left.b, dim=1)
        left_over = 1 - P[torch.arange(len(T), device=T.device), labels]
        off = (self.alpha * couplings - 1).abs() * left_over / precision
        off = torch.maximum(off, _MISFIT * misfits)
        good &= off < _BLURRED
        kept = distinct(T, torch.zeros_like(labels), torch.where(good, off, torch.inf), good)[
            : self.missing
        ]
        return T[kept] @ self.basis, labels[kept], off[kept]

    def _take(self, T: Tensor, labels: Tensor) -> None:
        """Add samples, sharpened in the whole gradient where that makes them better: errors of the
        first must not add up.

        What is left is the observation with their part subtracted, in the directions that are left.
        """
        sharp = SparseSamples(self.whole, _bias(self.whole), self.size).sharpen(
            T, labels, _RESHARPENED
        )
        singles = SingleSamples(self.whole, label_weights(self.whole, _bias(self.whole)))
        off, off_sharp = (
            (self.alpha * singles.state(t, labels).coupling - 1).abs() for t in (T, sharp)
        )
        T = torch.where((off_sharp < off)[:, None], sharp, T)
        self.T, self.labels = torch.cat([self.T, T]), torch.cat([self.labels, labels])
        whole, T = self.whole, self.T
        E = torch.softmax(T @ whole.K + whole.b, dim=1)
        E = E - torch.nn.functional.one_hot(self.labels, whole.classes)
        U, grad_b = whole.U - self.alpha * E.T @ T, _bias(whole) - self.alpha * E.sum(0)
        weight = whole.weight.clamp_max(10 * whole.weight.median())
        self.basis = basis = torch.linalg.svd(weight[:, None] * U, full_matrices=False)[2][
            : whole.rank - len(T)
        ]
        self.left = replace(
            whole, U=U @ basis.T, A=basis @ whole.A, K=basis @ whole.K, grad_b=grad_b
        )


def _bias(observation: Observation) -> Tensor:
    assert observation.grad_b is not None
    return observation.grad_b


class SparseSamples:
    """The equations of one observation; `size` is that of a usual feature."""

    def __init__(self, observation: Observation, grad_b: Tensor, size: float) -> None:
        self.observation, self.size = observation, size
        self.A = observation.A / size
        self.entries = len(self.A) * max(self.A.shape)
        self.N = torch.linalg.qr(observation.U, mode="complete").Q[:, observation.rank :].T
        self.w = torch.linalg.lstsq(observation.U, grad_b[:, None]).solution[:, 0]

    def hunt(self, T: Tensor, labels: Tensor, wells: Tensor) -> Tensor:
        """(n, R) where the starts are drawn to by `wells` (n, 3), sharpened; most of the rows are
        no samples."""
        return in_parts(self._hunt, self.entries, T, labels, wells)

    def sharpen(self, T: Tensor, labels: Tensor, width: float = _BLUNT) -> Tensor:
        """Newton's method with the small entries taken for zeros, those beyond `width` less and
        less: iteratively reweighted least squares, without damping or a test."""
        T = in_parts(lambda t, y: self._sharpen(t, y, width), self.entries, T, labels)
        return torch.where(torch.isfinite(T).all(1, keepdim=True), T, 0.0)

    def _hunt(self, T: Tensor, labels: Tensor, wells: Tensor) -> Tensor:
        width, wall = _OPENING
        depth, walls, softmax = wells.split(1, dim=1)
        open_ = wells.new_tensor([[0.0, wall, 1.0]]).expand_as(wells)
        T = self._settled(T, _Drawn(self, labels, open_, width), _OPENING_STEPS)
        while width > _NARROWEST:
            higher = (walls * depth.sqrt() / width).clamp_min(_LOWEST_WALL)
            drawn = _Drawn(self, labels, torch.cat([depth, higher, softmax], dim=1), width)
            T = self._settled(T, drawn, _STEPS)
            width *= _NARROWING
        return self._sharpen(torch.where(torch.isfinite(T), T, 0.0), labels, _BLUNT)

    def _settled(self, T: Tensor, drawn: _Drawn, budget: Budget) -> Tensor:
        return descend(drawn, T, budget, StoppingRule(untried=_UNTRIED)).s

    def _sharpen(self, T: Tensor, labels: Tensor, width: float) -> Tensor:
        while width > _SHARPEST and not out_of_time(_UNTRIED):
            for _ in range(_SHARP_STEPS):
                P, outside = self.softmax(T, labels)
                f = T @ self.A
                near = (1 + (f / width).square()).reciprocal().square()
                pull = _ZERO_WEIGHT**2 * torch.where(f < 0, 1.0, near)
                M, g = self.normal_equations(
                    T, P, outside, pull, torch.ones_like(T[:, :1]), _REFINED_NORMALIZED
                )
                ridge = 1e-9 * M.diagonal(dim1=1, dim2=2) + 1e-300
                T = T - torch.linalg.solve_ex(M + torch.diag_embed(ridge), g)[0]
            width /= 2
        return T

    def softmax(self, T: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """P (n, C) and N (P − e_y) (n, C − R)."""
        P = torch.softmax(T @ self.observation.K + self.observation.b, dim=1)
        return P, P @ self.N.T - self.N.T[labels]

    def normal_equations(
        self,
        T: Tensor,
        P: Tensor,
        outside: Tensor,
        pull: Tensor,
        softmax: Tensor,
        normalized: float,
    ) -> tuple[Tensor, Tensor]:
        """JᵀJ (n, R, R) and Jᵀr (n, R); `pull` (n, H) holds the weight of every entry of t A."""
        K = self.observation.K
        J = (K * P[:, None, :] - (P @ K.T)[:, :, None] * P[:, None, :]) @ self.N.T
        unit = normalized * self.w / self.w.norm()
        missed = normalized * (T @ self.w - 1) / self.w.norm()
        M = (
            softmax.square()[:, :, None] * (J @ J.mT)
            + (self.A * pull[:, None, :]) @ self.A.T
            + unit[:, None] * unit
        )
        g = (
            softmax.square() * (J @ outside[:, :, None])[:, :, 0]
            + (pull * (T @ self.A)) @ self.A.T
            + missed[:, None] * unit
        )
        return M, g


@dataclass(frozen=True)
class _Drawn(NonlinearProblem):
    """Starts (S, R) with labels under the softmax, t·w = 1, the wall, and wells ν f²/(f² + width²).

    The wells' curvature is that of the parabola which touches them and lies above.
    """

    samples: SparseSamples
    labels: Tensor
    wells: Tensor  # (S, 3) depth ν, height of the wall, weight of the softmax
    width: float

    @property
    def entries(self) -> int:
        return self.samples.entries

    def linearize(self, s: Tensor) -> Normal:
        (depth, wall, softmax), f = self.wells.split(1, dim=1), s @ self.samples.A
        P, outside = self.samples.softmax(s, self.labels)
        slope = self.width**2 / (f.square() + self.width**2).square()
        pull = wall.square() * (f < 0) + depth * slope
        M, g = self.samples.normal_equations(s, P, outside, pull, softmax, _NORMALIZED)
        return Normal(self._cost(s, f, outside), g, M, self.costs)

    def take(self, rows: Tensor) -> _Drawn:
        return replace(self, labels=self.labels[rows], wells=self.wells[rows])

    def costs(self, s: Tensor) -> Tensor:
        return self._cost(s, s @ self.samples.A, self.samples.softmax(s, self.labels)[1])

    def _cost(self, s: Tensor, f: Tensor, outside: Tensor) -> Tensor:
        depth, wall, softmax = self.wells.split(1, dim=1)
        w, square = self.samples.w, f.square()
        drawn = depth * (square / (square + self.width**2)) + (wall * f.clamp_max(0)).square()
        missed = _NORMALIZED * (s @ w - 1) / w.norm()
        return softmax[:, 0].square() * outside.square().sum(1) + drawn.sum(1) + missed.square()
