"""Step by step: the samples of the first step obey the one-step equation with the weights that were sent, whatever came after.

For a sample of that step p − y lies in the span of the whole movement, and p is softmax at known weights: R unknowns and C − R
equations for it alone, as for one sample of a gradient. With the first step's samples found, the weights of the second step are
known and its samples obey the same equation with those; what has been found is taken out, which leaves fewer directions. No
step's samples need those of a later one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.separate.exact.observation import Observation
from unsum.separate.exact.search import Search
from unsum.separate.exact.single import SingleSamples
from unsum.separate.local_steps.polish import Samples, polish
from unsum.separate.local_steps.trajectory import Trajectory

_LIMITS = (8.0, 40.0, 200.0)  # misfits of a sample: in units of the noise, and after errors of the samples before have added
_ROUNDS = 8  # kinds of starts that are tried without success before the limit is raised
_USUAL = 20.0  # times the size of a usual row's ratio: samples are not larger
_COUPLED = 0.02  # how far α q·t may be from 1
_COPY = 0.3  # relative distance below which two of one label may be one sample, seen again in a later step
_POLISHED = 600  # unknowns up to which what has been found is solved for together after every step


@dataclass
class _Step:
    """One step's search in what is left of the movement."""

    trajectory: Trajectory
    step: int
    rate: float
    samples: Samples
    classes: Tensor  # that may be labels
    generator: torch.Generator

    def __post_init__(self) -> None:
        observation = self.trajectory.observation
        self.count = self.trajectory.schedule.size(self.step)
        self.alpha = self.rate * self.trajectory.weight_of(self.step)
        Y = torch.nn.functional.one_hot(self.samples.labels, observation.classes).to(observation.U)
        rate = observation.U.new_tensor(self.rate)
        walk = self.trajectory.walk(self.samples.counts, self.samples.T, Y, rate)
        self.K, self.b, self.remainder = walk.K, walk.b, walk.remainder
        self.T, self.labels = observation.U[:0], self.samples.labels[:0]

    @property
    def rank(self) -> int:
        return self.trajectory.observation.rank - self.samples.number - len(self.T)

    def run(self) -> None:
        for limit in _LIMITS:
            failures = 0
            while failures < _ROUNDS and len(self.T) < self.count and self.rank > 0:
                failures = 0 if self._try(failures, limit) else failures + 1
            if len(self.T) == self.count or self.rank <= 0:
                return
            if self._is_last and self._solve_as_one():
                return

    @property
    def _is_last(self) -> bool:
        return self.rank == self.count - len(self.T)

    def _left(self) -> tuple[Tensor, Observation]:
        """The remainder in as few directions as it has: their basis (r, R), and what is observed in it."""
        observation, R = self.trajectory.observation, self.trajectory.observation.rank
        U = self.remainder[:, :R]
        scale = observation.weight / observation.weight.max()
        basis = torch.linalg.svd(scale[:, None] * U, full_matrices=False)[2][: self.rank]
        grad_b = None if observation.grad_b is None else self.remainder[:, R] / observation.beta
        left = replace(
            observation, U=U @ basis.T, A=basis @ observation.A, K=basis @ self.K, b=self.b, grad_b=grad_b
        )
        return basis, left

    def _try(self, kind: int, limit: float) -> bool:
        """Refine one start for every class, take out what proves to be samples of this step; whether there were any."""
        basis, left = self._left()
        singles, y = SingleSamples(left, left.weight), self.classes
        usual = _usual(left)
        starts = self._starts(kind, left, usual)[y]
        for coupled in (None, self.alpha):
            T = singles.refine(starts, y, coupled, iterations=40)
            if coupled is None:
                T = singles.refine(T, y, self.alpha, iterations=10)
            misfits = singles.misfits(T, y).nan_to_num(nan=torch.inf)
            off = (self.alpha * singles.couplings(T, y) - 1).abs()
            good = (misfits < limit) & (off < _COUPLED + 100 * left.noise.relative) & (T.norm(dim=1) < _USUAL * usual)
            chosen = [i for i in misfits.argsort().tolist() if bool(good[i])]
            chosen = [i for i in chosen if not self._is_copy(T[i] @ basis, y[i])][: self.count - len(self.T)]
            if chosen:
                self._take(T[chosen] @ basis, y[chosen])
                return True
        return False

    def _starts(self, kind: int, left: Observation, usual: float) -> Tensor:
        """(C, r): nothing, the rows' ratios, or random ones around their mean."""
        C, r = left.U.shape
        noise = torch.randn(C, r, generator=self.generator, dtype=torch.float64).to(left.U) * usual / r**0.5
        if kind == 0 or left.grad_b is None:
            return torch.zeros_like(noise) if kind == 0 else noise * (0.3, 1.0)[kind % 2]
        ratios = left.U / left.grad_b[:, None]
        ratios = ratios / (ratios.norm(dim=1, keepdim=True) / usual).clamp_min(1)
        positive = left.grad_b > 0
        mean = left.U[positive].sum(0) / left.grad_b[positive].sum().clamp_min(1e-300)
        kinds = (ratios, mean + noise, ratios + 0.5 * noise, 0.3 * noise, mean.expand(C, -1))
        return kinds[(kind - 1) % len(kinds)]

    def _is_copy(self, t: Tensor, label: Tensor) -> bool:
        """Whether it is a sample found already, as a later epoch saw it."""
        if self.trajectory.schedule.epochs == 1:
            return False
        known = torch.cat([self.samples.T[self.samples.labels == label], self.T[self.labels == label]])
        return bool(((known - t).norm(dim=1) < _COPY * t.norm()).any())

    def _take(self, T: Tensor, labels: Tensor) -> None:
        Y = torch.nn.functional.one_hot(labels, len(self.b)).to(T)
        E = self.alpha * (torch.softmax(T @ self.K + self.b, dim=1) - Y)
        self.remainder = self.remainder - E.T @ self.trajectory.extended(T)
        self.T, self.labels = torch.cat([self.T, T]), torch.cat([self.labels, labels])

    def _solve_as_one(self) -> bool:
        """The last step alone is left, a plain gradient: the exact solver's whole search, which knows more starts."""
        basis, left = self._left()
        factor = self.alpha * (self.rank if left.reduction == "mean" else 1)
        grad_b = None if left.grad_b is None else left.grad_b / factor
        noise = replace(left.noise, level=left.noise.level / factor)
        plain = replace(left, U=left.U / factor, grad_b=grad_b, weight=left.weight * factor, noise=noise)
        found = Search.over(plain, None, self.rank, int(torch.randint(1 << 30, (1,), generator=self.generator))).best()
        if found is None or not found.plausible or len(found.at.T) != self.rank:
            return False
        self._take(found.at.T @ basis, found.Y.argmax(1))
        return True


def _usual(left: Observation) -> float:
    """The size of features: of the rows' ratios to the bias's, or of what fits the largest row without one."""
    sizes = left.U.norm(dim=1)
    if left.grad_b is None:
        return float(sizes.max() / (sizes.median() / sizes.max()).clamp_min(1e-3) / sizes.max())
    return float((sizes / left.grad_b.abs().clamp_min(1e-300)).median())


def follow(
    trajectory: Trajectory, rate: float, classes: Tensor, generator: torch.Generator, *, rate_free: bool = False
) -> Samples:
    """The samples of the first epoch's steps, as far as the chain of steps leads."""
    observation = trajectory.observation
    samples = Samples((), observation.U[:0], classes[:0], rate)
    for step in range(len(trajectory.schedule.sizes)):
        search = _Step(trajectory, step, samples.rate, samples, classes, generator)
        search.run()
        samples = Samples(
            (*samples.counts, len(search.T)),
            torch.cat([samples.T, search.T]),
            torch.cat([samples.labels, search.labels]),
            samples.rate,
        )
        if len(search.T) < search.count:
            break
        if samples.T.numel() <= _POLISHED and step + 1 < len(trajectory.schedule.sizes):
            missing = observation.rank - samples.number
            samples = polish(trajectory, samples, missing, rate_free=rate_free, iterations=6).samples
    return samples
