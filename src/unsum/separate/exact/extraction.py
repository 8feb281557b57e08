"""Samples extracted one after another: for trained models, whose peaked softmax the regression
cannot follow.

Starts come from the label rows (∇W_y / ∇b_y is nearly the features of a sample that carries y
alone) and from the corners of the simplex. Whatever a start leads to is checked on its own, and
what is found is subtracted: rows of labels that another sample's prediction had hidden come to
light.

Mixed labels, as of mixup: a target (1 − μ) e_y + μ e_z leaves p − e_y + μ (e_y − e_z) in the span
of U: for a pair of classes that is a sample's own equation with one more unknown, μ, which is
linear. The classes that stand out of ∇b are paired in all ways, and the ratios ∇W_y / ∇b_y of both
rows, and the mean of these, are starts. A class that one sample's prediction hides behind another's
label does not stand out: where few are missing, any class may be the second.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.engine.found import LabeledPoints
from unsum.equation.equation import Equation, Unknowns, positive_factor, solve
from unsum.equation.observation import Observation
from unsum.running.deadline import out_of_time
from unsum.separate.exact.single import SingleSamples
from unsum.separate.exact.starts import hunt_corners

_UNTRIED = "samples one at a time"
FITS = 8.0  # misfit of a sample, in units of the noise
SAME_SAMPLE = 0.05  # relative distance below which two answers are one sample found twice
_USUAL = 20.0  # times the size of a usual row's ratio: samples are not larger
_VISIBLE = 30.0  # deviations of ∇b that make a row's sign certain
# times what smoothing takes from a row that a row has more, where a model is surer than the target
_SURER = 10.0
_SHARP = 1e-3  # of its length that a sample would still move
ROUNDS = 24  # of looking for further samples, each of which usually finds several
# relative distance from a plain scale within which samples that are still rough say that it is
# plain
_PLAIN = 2e-3
_ROWS = 2  # times as many classes as samples are missing are paired
_MOST_MIXED, _MOST_CLASSES = 32, 4096  # samples and classes: pairs are many
_FIRST = 8  # steps of all starts
_PART, _FEW = 6, 200  # then a sixth of them goes on, but this many at least
_PAIRS = 6000  # of a class that stands out with any
_SLACK = 1e-3  # of a share, beyond 0 and 1


@dataclass(frozen=True)
class Extracted:
    """Samples found on their own: T (n, R), labels (n,), and the factor α and the targets' floor e
    that they share."""

    T: Tensor
    labels: Tensor
    alpha: float
    floor: float


def extract(observation: Observation, *, smoothed: bool = False) -> Extracted | None:
    """As many samples of hard or smoothed label as can be found, at most R; None where the
    equations do not allow to try."""
    if observation.grad_b is None or observation.classes < 2 * observation.rank + 1 + smoothed:
        return None
    if out_of_time(_UNTRIED):
        return None
    left = _Smoothed(observation, observation.grad_b, smoothed)
    if len(left.label_starts()[0]) == 0:
        return None
    # Samples beyond doubt first: what is subtracted wrong disturbs whatever is sought after it. In
    # a large batch some are long on the way; every sample subtracted leaves the ratios of the other
    # rows nearer to theirs, so that later starts arrive sooner.
    while left.missing and left.accept(*left.label_starts(), faint=False, sharp=True):
        pass
    for faint in (False, True):
        left.search(faint)
    return Extracted(left.T, left.labels, left.alpha, left.floor)


class Remainder:
    """What is left of the gradient after the samples T (n, R) found so far."""

    def __init__(self, observation: Observation, grad_b: Tensor, floor: float | None = 0.0) -> None:
        self.observation = observation
        self.U, self.grad_b, self.T = observation.U, grad_b, observation.U[:0]
        self.weight = label_weights(observation, grad_b)
        self.singles = SingleSamples(observation, self.weight, floor)
        self.usual = (observation.U.norm(dim=1) / grad_b.abs()).median()

    @property
    def missing(self) -> int:
        return self.observation.rank - len(self.T)

    def are_samples(self, T: Tensor, labels: Tensor, faint: bool = False) -> Tensor:
        """(n,) bool: whether p − e_y lies in the span of U as it does for a sample, and t is of a
        sample's size."""
        inside: Tensor = self.singles.outside(T, labels) < self.singles.slack(T, labels, faint)
        usual: Tensor = T.norm(dim=1) < _USUAL * self.usual
        return inside & usual & (self.singles.misfits(T, labels) < FITS)

    def subtract(self, T: Tensor, Y: Tensor, alpha: float, floor: float = 0.0) -> None:
        E = torch.softmax(T @ self.observation.K + self.observation.b, dim=1) - Y - floor
        self.U = self.U - alpha * E.T @ T
        self.grad_b = self.grad_b - alpha * E.sum(0)
        self.T = torch.cat([self.T, T])


class _Smoothed(Remainder):
    """The samples found have hard labels, or ones that are smoothed alike."""

    def __init__(self, observation: Observation, grad_b: Tensor, smoothed: bool) -> None:
        super().__init__(observation, grad_b, None if smoothed else 0.0)
        self.smoothed, self.labels = smoothed, observation.U[:0, 0].long()
        self.visible = _VISIBLE / (observation.weight * observation.beta)
        self.alpha, self.floor = self._find_factors()
        self.singles = SingleSamples(observation, self.weight, self.floor)

    def search(self, faint: bool) -> None:
        """Accept samples from label rows and corners until none is missing or nothing new comes
        up."""
        hidden = torch.zeros_like(self.grad_b, dtype=torch.bool)
        changed = True  # the same label rows lead to the same samples
        for _ in range(ROUNDS):
            if self.missing == 0 or bool(hidden.all()) or out_of_time(_UNTRIED):
                return
            if changed and self.accept(*self.label_starts(), faint):
                continue
            T, worst = self._corner_starts(hidden)
            changed = self.accept(T, self.singles.labels(T), faint)
            hidden = torch.zeros_like(hidden) if changed else hidden | worst

    def label_starts(self) -> tuple[Tensor, Tensor]:
        """The ratio of every row whose ∇b says that it is a label's: near the sample that carries
        it.

        Surely negative, that is. Smoothing takes as much from every row, so that labels are those
        that lie far from the others: below them, or above, where the model is surer of a sample
        than its target is.
        """
        if self.smoothed:
            others = self.grad_b.median().clamp(max=0)
            far = (self.grad_b < 2 * others - self.visible) | (
                self.grad_b > -_SURER * others + self.visible
            )
        else:
            far = self.grad_b < -self.visible
        labels = far.nonzero()[:, 0]
        return self.U[labels] / self.grad_b[labels][:, None], labels

    def _find_factors(self) -> tuple[float, float]:
        """α and e from the samples themselves: each label row's start, refined without the
        coupling, says q·t = 1/α."""
        T, labels = self.label_starts()
        T = self.singles.refine(T, labels, None)
        state = self.singles.state(T, labels)
        samples = self.are_samples(T, labels) & (state.coupling > 0)
        if not bool(samples.any()):
            return self.observation.alpha(1.0, self.observation.rank), 0.0
        alpha = positive_factor(1 / float(state.coupling[samples].median()))
        return snapped(alpha, self.observation), float(state.amount[samples].median())

    def accept(self, T: Tensor, labels: Tensor, faint: bool, sharp: bool = False) -> bool:
        """Refine the starts, keep those that are samples and new, and subtract them; whether any
        was found."""
        if len(T) == 0 or out_of_time(_UNTRIED):
            return False
        T = self.singles.refine(T, labels, self.alpha)
        off = (self.alpha * self.singles.state(T, labels).coupling - 1).abs()
        accepted = self.are_samples(T, labels, faint) & (
            off < 10 * self.singles.slack(T, labels, faint)
        )
        if sharp:
            accepted &= self.singles.steps(T, labels, self.alpha) < _SHARP
        misfits = self.singles.misfits(T, labels)
        kept = distinct(T, labels, misfits, accepted, (self.T, self.labels))[: self.missing]
        if kept:
            C = self.observation.classes
            Y = torch.nn.functional.one_hot(labels[kept], C) * (1 - C * self.floor)
            self.subtract(T[kept], Y, self.alpha, self.floor)
            self.labels = torch.cat([self.labels, labels[kept]])
        return bool(kept)

    def _corner_starts(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Corners of what is left, before and after solving for all of them together; and the rows
        that fit worst."""
        observation, D = self.observation, self.singles.D
        if self.smoothed:
            # No row is free of targets, and ratios are no mixtures of samples; where few are left,
            # they are near one.
            rows = (self.grad_b.abs() > self.visible).nonzero()[:, 0]
            rows = rows[self.grad_b[rows].abs().argsort(descending=True)][: 4 * self.missing]
            return self.U[rows] / self.grad_b[rows][:, None], torch.ones_like(hidden)
        inside = (self.grad_b > self.visible) & ~hidden
        if int(inside.sum()) <= self.missing + 1:
            return self.U[:0], torch.ones_like(hidden)
        basis = torch.linalg.svd(D[:, None] * self.U, full_matrices=False)[2][: self.missing]
        U = self.U @ basis.T
        ratios = U[inside] / self.grad_b[inside][:, None]
        corners = ratios[hunt_corners(ratios, self.missing)]
        labeled = (self.grad_b < -self.visible) | hidden
        extended = torch.cat([U, observation.beta * self.grad_b[:, None]], dim=1)
        equation = Equation(
            basis @ observation.K, observation.b, extended, D * ~labeled, observation.beta
        )
        solved = solve(equation, Unknowns.of(corners, self.alpha), 40)
        relative = equation.residual(solved).norm(dim=1) / D * observation.weight
        starts = torch.cat([solved.T, corners]) @ basis
        return starts[torch.isfinite(starts).all(1)], relative > 0.2 * relative.max()


def extract_mixed(observation: Observation) -> tuple[Tensor, Tensor, float] | None:
    """T (n, R), targets (n, C) and the common factor α of as many samples of mixed label as can be
    found, at most R.

    None where the equations do not allow to try, or nothing is found.
    """
    R, C = observation.rank, observation.classes
    if observation.grad_b is None or observation.noise.added:
        return None
    if not (1 < R <= _MOST_MIXED and 2 * R + 2 <= C <= _MOST_CLASSES):
        return None
    left = _Mixed(observation, observation.grad_b)
    for _ in range(ROUNDS):
        if (
            left.missing == 0
            or out_of_time("samples of mixed labels")
            or not any(
                left.find(starts()) for starts in (left.corners, left.pairs, left.pairs_with_any)
            )
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
        """Refine all starts, keep those that are samples and new, and subtract them; whether any
        was found."""
        T, pairs = starts
        if len(T) == 0:
            return False
        T = self.singles.refine(T, pairs, self.alpha, _FIRST)
        # Most pairs are of no sample: only the part goes on that came nearest to the span.
        outside = self.singles.outside(T, pairs).nan_to_num(nan=torch.inf)
        chosen = outside.argsort()[: max(_FEW, len(T) // _PART)]
        T, pairs = self.singles.refine(T[chosen], pairs[chosen], self.alpha), pairs[chosen]
        state = self.singles.state(T, pairs)
        couplings, amounts = state.coupling, state.amount
        misfits = self.singles.misfits(T, pairs).nan_to_num(nan=torch.inf)
        good = self.are_samples(T, pairs) & (couplings > 0)
        good &= (amounts > -_SLACK) & (amounts < 1 + _SLACK)
        if not bool(good.any()):
            return False
        if self.alpha is None:
            self.alpha = snapped(
                positive_factor(1 / float(couplings[good].median())), self.observation
            )
        good &= (self.alpha * couplings - 1).abs() < 10 * self.singles.slack(T, pairs, faint=False)
        # Whatever their classes are: one sample may be found with several seconds of almost no
        # share.
        of_any = torch.zeros_like(pairs[:, 0])
        kept = distinct(T, of_any, misfits, good, (self.T, of_any.new_zeros(len(self.T))))[
            : self.missing
        ]
        if kept:
            Y = self.Y.new_zeros(len(kept), self.observation.classes)
            Y.scatter_(1, pairs[kept], torch.stack([1 - amounts[kept], amounts[kept]], dim=1))
            self.subtract(T[kept], Y, self.alpha)
            self.Y = torch.cat([self.Y, Y])
        return bool(kept)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """(n, R) ratios of the rows that stand out, and (n, 2) the classes that are paired for
        each."""
        rows, ratios = self._outstanding(_ROWS * self.missing + 2)
        a, b = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
        T = torch.cat([ratios[a], ratios[b], (ratios[a] + ratios[b]) / 2])
        finite = torch.isfinite(T).all(1)
        return T[finite], torch.stack([rows[a], rows[b]], dim=1).repeat(3, 1)[finite]

    def corners(self) -> tuple[Tensor, Tensor]:
        """Classes that nobody carries are mixtures of the samples: near their corners the sample's
        prediction is one label."""
        rows, _ = self._outstanding(_ROWS * self.missing + 2)
        free = self.grad_b > 0
        free[rows] = False
        ratios = self.U[free] / self.grad_b[free][:, None]
        if len(ratios) <= self.missing:
            return self.U[:0], rows[:0, None].expand(0, 2)
        T = ratios[hunt_corners(ratios, self.missing)]
        first = torch.softmax(T @ self.observation.K + self.observation.b, dim=1).argmax(1)
        return _paired(T, first, rows)

    def pairs_with_any(self) -> tuple[Tensor, Tensor]:
        """The same with every other class as the second."""
        C = self.observation.classes
        rows, ratios = self._outstanding(min(_ROWS * self.missing + 2, _PAIRS // C))
        return _paired(ratios, rows, torch.arange(C, device=rows.device))

    def _outstanding(self, count: int) -> tuple[Tensor, Tensor]:
        """The rows with the most of ∇b, and their ratios."""
        rows = self.grad_b.abs().topk(min(count, len(self.grad_b))).indices
        return rows, self.U[rows] / self.grad_b[rows][:, None]


def _paired(T: Tensor, first: Tensor, seconds: Tensor) -> tuple[Tensor, Tensor]:
    """Every start with its first class and each of the second ones."""
    pairs = torch.cartesian_prod(torch.arange(len(first), device=first.device), seconds)
    T, pairs = T[pairs[:, 0]], torch.stack([first[pairs[:, 0]], pairs[:, 1]], dim=1)
    kept = torch.isfinite(T).all(1) & (pairs[:, 0] != pairs[:, 1])
    return T[kept], pairs[kept]


def distinct(
    T: Tensor,
    labels: Tensor,
    misfits: Tensor,
    accepted: Tensor,
    before: tuple[Tensor, Tensor] | None = None,
) -> list[int]:
    """Those of the accepted samples that are new: the best first, none of them twice or as one
    `before`, T with labels."""
    rows = accepted.nonzero()[:, 0]
    points = LabeledPoints.of(T[rows], 0 * misfits[rows], misfits[rows], labels=labels[rows])
    if before is not None:
        known = LabeledPoints.unranked(before[0], labels=before[1])
        new = points.apart_from(known, SAME_SAMPLE, blur=0.0)
        rows, points = rows[new], points[new]
    return rows[points.grouped(SAME_SAMPLE, blur=0.0)[0]].tolist()


def label_weights(observation: Observation, grad_b: Tensor) -> Tensor:
    """Row weights that know that a label row's p − 1 carries the rounding of 1, however small it
    is."""
    size = observation.U.norm() / grad_b.norm()
    rounding = observation.client_precision * size / observation.rank * (grad_b < 0)
    return torch.rsqrt(observation.weight.pow(-2) + rounding.square())


def snapped(alpha: float, observation: Observation) -> float:
    """1/B exactly where α is that close to it: a mean over the batch that nothing has scaled."""
    if observation.reduction != "mean":
        return 1.0 if abs(alpha - 1) < _PLAIN else alpha
    B = max(round(1 / alpha), observation.rank)
    return 1 / B if abs(alpha * B - 1) < _PLAIN and 2 * observation.rank >= B else alpha
