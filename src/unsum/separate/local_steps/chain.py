"""Step by step: the samples of the first step obey the one-step equation with the weights that were
sent, whatever came after.

For a sample of that step p − y lies in the span of the whole movement, and p is softmax at known
weights: R unknowns and C − R equations for it alone, as for one sample of a gradient. With the
first step's samples found, the weights of the second step are known and its samples obey the same
equation with those; what has been found is taken out, which leaves fewer directions. No step's
samples need those of a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.engine.found import LabeledPoints
from unsum.equation.observation import Observation
from unsum.running.deadline import out_of_time
from unsum.separate.exact.extraction import FITS, SAME_SAMPLE, distinct
from unsum.separate.exact.search import Search
from unsum.separate.exact.single import SingleSamples
from unsum.separate.local_steps.counting import USUAL, ratios, usual_ratio
from unsum.separate.local_steps.movement import Trajectory
from unsum.separate.local_steps.polish import Polished, Samples, polish

# Misfits of a sample: in units of the noise, and after errors of the samples before have added; and
# whether it may be faint.
_LIMITS = ((FITS, False), (FITS, True), (100.0, True))
_PROVED = 0.05  # of the unlikely classes' share that may lie outside the span
_ROUNDS = 6  # kinds of starts that are tried without success before the limit is raised
_COUPLED = 0.02  # how far α q·t may be from 1
# relative distance below which two of one label may be one sample, seen again in a later step
_COPY = 0.3
_TRIES = 2  # at a step, with other random starts, until what was found explains the movement
_BRANCHES = 3  # choices of a step's labels that are followed
_NODES = 6  # steps that are tried in all
_UNTRIED = "further local steps"


@dataclass
class _Step:
    """One step's search in what is left of the movement."""

    trajectory: Trajectory
    step: int
    samples: Samples  # of the steps before
    classes: Tensor  # that may be labels
    generator: torch.Generator
    first_kind: int = 0  # of starts; other ones at another try

    def __post_init__(self) -> None:
        observation = self.trajectory.observation
        self.count = self.trajectory.schedule.size(self.step)
        self.alpha = self.samples.rate * self.trajectory.weight_of(self.step)
        Y, rate = (
            self.trajectory.targets(self.samples.labels),
            observation.U.new_tensor(self.samples.rate),
        )
        walk = self.trajectory.walk(self.samples.counts, self.samples.T, Y, rate)
        self.K, self.b, self.remainder = walk.K, walk.b, walk.remainder
        self.T, self.labels = observation.U[:0], self.samples.labels[:0]

    @property
    def rank(self) -> int:
        return self.trajectory.observation.rank - self.samples.number - len(self.T)

    def run(self) -> None:
        for limit, faint in _LIMITS:
            failures = self.first_kind
            while (
                failures < _ROUNDS + self.first_kind and len(self.T) < self.count and self.rank > 0
            ):
                if out_of_time(_UNTRIED):
                    return
                failures = self.first_kind if self._try(failures, limit, faint) else failures + 1
            if len(self.T) == self.count or self.rank <= 0:
                return
            last = self.rank == self.count - len(self.T)
            if last and self._solve_as_one():
                return

    def _left(self) -> tuple[Tensor, Observation]:
        """The remainder in as few directions as it has: their basis (r, R), and what is observed in
        it."""
        observation, R = self.trajectory.observation, self.trajectory.observation.rank
        U = self.remainder[:, :R]
        scale = observation.weight / observation.weight.max()
        basis = torch.linalg.svd(scale[:, None] * U, full_matrices=False)[2][: self.rank]
        grad_b = None if observation.grad_b is None else self.remainder[:, R] / observation.beta
        left = replace(
            observation,
            U=U @ basis.T,
            A=basis @ observation.A,
            K=basis @ self.K,
            b=self.b,
            grad_b=grad_b,
        )
        return basis, left

    def _try(self, kind: int, limit: float, faint: bool) -> bool:
        """Refine one start for every class, take out what proves to be samples of this step;
        whether there were any."""
        basis, left = self._left()
        singles = SingleSamples(left, left.weight)
        usual = _usual(left, self.samples.T)
        starts = self._starts(kind, left, usual)[self.classes]
        for coupled in (None, self.alpha):
            if out_of_time(_UNTRIED):
                break
            T = singles.refine(starts, self.classes, coupled, steps=40)
            if coupled is None:
                T = singles.refine(T, self.classes, self.alpha, steps=10)
            T, y = _relabeled(singles, T, self.classes, self.alpha)
            misfits = singles.misfits(T, y).nan_to_num(nan=torch.inf)
            off = (self.alpha * singles.state(T, y).coupling - 1).abs()
            good = (
                (misfits < limit)
                & (off < _COUPLED + 100 * left.noise.relative)
                & (T.norm(dim=1) < USUAL * usual)
            )
            if not faint:
                P = torch.softmax(T @ left.K + left.b, dim=1)
                # that `outside` is relative to
                size = ((P - self.trajectory.targets(y)) * singles.D).norm(dim=1)
                # What softmax says of all classes but the likeliest is little where it is
                # saturated, and such a root proves nothing: a later step's sample of saturated
                # prediction looks like one of this step, far out.
                tail = (P.scatter(1, P.argmax(1, keepdim=True), 0.0) * singles.D).norm(dim=1)
                good &= singles.outside(T, y) * size < _PROVED * tail
            if self.trajectory.schedule.epochs > 1:
                good &= ~self._are_copies(T @ basis, y)
            chosen = distinct(T, torch.zeros_like(y), misfits, good)[: self.count - len(self.T)]
            if chosen:
                self._take(T[chosen] @ basis, y[chosen])
                return True
        return False

    def _starts(self, kind: int, left: Observation, usual: float) -> Tensor:
        """(C, r): nothing, the rows' ratios, or random ones around their mean."""
        C, r = left.U.shape
        noise = (
            torch.randn(C, r, generator=self.generator, dtype=torch.float64).to(left.U)
            * usual
            / r**0.5
        )
        if kind == 0 or left.grad_b is None:
            return torch.zeros_like(noise) if kind == 0 else noise * (0.3, 1.0)[kind % 2]
        rows = ratios(left.U, left.grad_b, usual)
        positive = left.grad_b > 0
        mean = left.U[positive].sum(0) / left.grad_b[positive].sum().clamp_min(1e-300)
        kinds = (rows, mean + noise, rows + 0.5 * noise, 0.3 * noise, mean.expand(C, -1))
        return kinds[(kind - 1) % len(kinds)]

    def _are_copies(self, T: Tensor, labels: Tensor) -> Tensor:
        """(n,) bool: samples found already, as a later epoch saw them."""
        known, named = (
            torch.cat([self.samples.T, self.T]),
            torch.cat([self.samples.labels, self.labels]),
        )
        found = LabeledPoints.unranked(known, labels=named)
        return ~LabeledPoints.unranked(T, labels=labels).apart_from(found, _COPY, blur=0.0)

    def alternatives(self) -> list[Tensor]:
        """The step's labels, and other ones that what has been found leaves open; the likeliest
        first.

        Where a later sample of label z was surely taken for y, e_y − e_z lies in the span, and a
        sample of label y passes as one of z, until a later step does not fit.
        """
        found: list[tuple[float, Tensor]] = [(0.0, self.labels)]
        T, labels, remainder = self.T, self.labels, self.remainder
        for place in range(len(T)):
            others = [k for k in range(len(T)) if k != place]
            self.T, self.labels = T[others], labels[others]
            self.remainder = remainder + self._sent(T[[place]], labels[[place]])
            for label, misfit in self._open_labels(T[place]):
                if label != int(labels[place]):
                    changed = labels.clone()
                    changed[place] = label
                    found.append((misfit, changed))
        self.T, self.labels, self.remainder = T, labels, remainder
        return [labels for _, labels in sorted(found, key=lambda pair: pair[0])[:_BRANCHES]]

    def _open_labels(self, t: Tensor) -> list[tuple[int, float]]:
        """Labels that explain p − y at t about as well as noise allows."""
        basis, left = self._left()
        singles = SingleSamples(left, left.weight)
        starts = (t @ basis.T).expand(len(self.classes), -1)
        T = singles.refine(starts, self.classes, self.alpha, steps=10)
        near = (T - starts).norm(dim=1) < SAME_SAMPLE * starts.norm(dim=1)
        misfits = singles.misfits(T, self.classes).nan_to_num(nan=torch.inf)
        fits = near & (misfits < _LIMITS[0][0])
        return [(int(self.classes[i]), float(misfits[i])) for i in fits.nonzero()[:, 0].tolist()]

    def _take(self, T: Tensor, labels: Tensor) -> None:
        self.remainder = self.remainder - self._sent(T, labels)
        self.T, self.labels = torch.cat([self.T, T]), torch.cat([self.labels, labels])

    def _sent(self, T: Tensor, labels: Tensor) -> Tensor:
        """What samples of this step add to the movement."""
        E = self.alpha * (
            torch.softmax(T @ self.K + self.b, dim=1) - self.trajectory.targets(labels)
        )
        return E.T @ self.trajectory.equation.extended(T)

    def _solve_as_one(self) -> bool:
        """The last step alone is left, a plain gradient: the exact solver's whole search, which
        knows more starts."""
        basis, left = self._left()
        factor = self.alpha * (self.rank if left.reduction == "mean" else 1)
        grad_b = None if left.grad_b is None else left.grad_b / factor
        noise = replace(left.noise, level=left.noise.level / factor)
        plain = replace(
            left, U=left.U / factor, grad_b=grad_b, weight=left.weight * factor, noise=noise
        )
        found = Search.over(
            plain, None, self.rank, int(torch.randint(1 << 30, (1,), generator=self.generator))
        ).best()
        if found is None or not found.explains or len(found.at.T) != self.rank:
            return False
        self._take(found.at.T @ basis, found.Y.argmax(1))
        return True


def _relabeled(
    singles: SingleSamples, T: Tensor, labels: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Each root with the label that suits it better, its own or the nearest: see
    `_Step.alternatives`."""
    finite = torch.where(torch.isfinite(T), T, torch.zeros_like(T))
    nearest = singles.labels(finite)
    other = singles.refine(finite, nearest, alpha, steps=10)
    better = (nearest != labels) & (
        singles.misfits(other, nearest) < singles.misfits(T, labels).nan_to_num(nan=torch.inf)
    )
    return torch.where(better[:, None], other, T), torch.where(better, nearest, labels)


def _usual(left: Observation, known: Tensor) -> float:
    """The size of features: of those found before, else of the rows' ratios to the bias's, or of
    the rows without one."""
    if len(known):
        return float(known.norm(dim=1).max())
    if left.grad_b is not None:
        return usual_ratio(left.U, left.grad_b)
    sizes = left.U.norm(dim=1)
    return float(1 / (sizes.median() / sizes.max()).clamp_min(1e-3))


@dataclass
class _Search:
    """Depth first through the steps: where a step finds nothing that fits, labels before it are
    chosen anew."""

    trajectory: Trajectory
    classes: Tensor
    generator: torch.Generator
    best: Polished
    first_kind: int = 0
    nodes: int = 0

    def descend(self, so_far: Polished) -> bool:
        """Whether all steps behind `so_far` were found."""
        if len(so_far.samples.counts) == len(self.trajectory.schedule.sizes):
            return True
        tried: set[tuple[int, ...]] = set()
        for attempt in range(_TRIES):
            for found in self._next_step(so_far.samples, self.first_kind + 2 * attempt):
                self.best = max(
                    self.best,
                    found,
                    key=lambda one: (one.samples.number * one.explains, -one.misfit),
                )
                key = tuple(found.samples.labels.tolist())
                counts = found.samples.counts
                fits = found.explains and counts == self.trajectory.schedule.sizes[: len(counts)]
                if fits and key not in tried and self.descend(found):
                    return True
                tried.add(key)
                if self.nodes >= _NODES:
                    return False
        return False

    def _next_step(self, before: Samples, first_kind: int) -> Iterator[Polished]:
        """The samples with those of the next step, solved for together; for every choice of labels
        that is open."""
        step = len(before.counts)
        search = _Step(self.trajectory, step, before, self.classes, self.generator, first_kind)
        search.run()
        if out_of_time(_UNTRIED):
            return
        missing = self.trajectory.observation.rank - before.number - len(search.T)
        for labels in search.alternatives() if missing else [search.labels]:
            self.nodes += 1
            every, T = torch.cat([before.labels, labels]), torch.cat([before.T, search.T])
            samples = Samples((*before.counts, len(search.T)), T, every, before.rate)
            yield polish(self.trajectory, samples, missing)


def follow(
    trajectory: Trajectory,
    rate: float,
    classes: Tensor,
    generator: torch.Generator,
    *,
    first_kind: int = 0,
) -> Polished:
    """The samples of the first epoch's steps, as far as the chain of steps leads; from the
    `first_kind` of starts on."""
    U = trajectory.observation.U
    nothing = Polished(Samples((), U[:0], classes[:0], rate), 0.0, U[:0, 0])
    search = _Search(trajectory, classes, generator, nothing, first_kind)
    search.descend(nothing)
    return search.best
