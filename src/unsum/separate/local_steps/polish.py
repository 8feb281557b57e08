"""Samples of the first steps, solved for together: what they leave of the movement must have the
rank of what is missing.

With r samples left out, the remainder X − Σ (theirs) has rank r exactly, whatever those are. So the
squares of its singular values beyond the r-th, in units of the noise, are minimized; with none left
out that is all of the remainder. Only the samples' own T and, where it is unknown, the learning
rate are sought.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.certify.scatter import SPARE
from unsum.engine.budget import Budget
from unsum.engine.descend import NonlinearProblem, Normal, StoppingRule, descend
from unsum.equation.levenberg import Dense
from unsum.separate.local_steps.movement import Schedule, Trajectory, Walk

EXPLAINED = 4.0  # misfit of a solution, in units of the noise


@dataclass(frozen=True)
class Samples:
    """Samples of the first steps: `counts` of each, rows of T (m, R) and their class numbers (m,),
    step by step."""

    counts: tuple[int, ...]
    T: Tensor
    labels: Tensor
    rate: float

    @property
    def number(self) -> int:
        return len(self.T)


@dataclass(frozen=True)
class Polished:
    """`misfit` is the residual's root mean square in units of the noise; `errors` (m,) what is
    predicted for the features."""

    samples: Samples
    misfit: float
    errors: Tensor

    @property
    def explains(self) -> bool:
        return self.misfit < EXPLAINED

    def completes(self, schedule: Schedule) -> bool:
        """Whether these are all samples of all steps."""
        return self.explains and self.samples.counts == schedule.sizes


class Here(Dense):
    """The equations at one point, in the directions that the missing samples leave free there."""

    def __init__(self, polisher: Polisher, at: Tensor) -> None:
        self.polisher = polisher
        self.left, self.right = polisher.free_directions(at)
        super().__init__(
            lambda point: polisher.equations(point, self.left, self.right), at, polisher.fixed
        )


class Polisher:
    """The equations for one set of samples; `missing` further ones may be in the movement."""

    def __init__(self, trajectory: Trajectory, samples: Samples, missing: int) -> None:
        self.trajectory, self.missing, self.rate_free = trajectory, missing, trajectory.rate_free
        self.counts, self.shape = samples.counts, samples.T.shape
        self.Y, self.weight = trajectory.targets(samples.labels), trajectory.observation.weight
        self.fixed = torch.zeros(
            self.shape.numel() + 1, dtype=torch.bool, device=self.weight.device
        )
        self.fixed[-1] = not self.rate_free  # a rate that is known stays as it is

    def start(self, samples: Samples) -> Tensor:
        rate = samples.T.new_tensor([samples.rate]).log()
        return torch.cat([samples.T.flatten(), rate])

    def walk(self, at: Tensor) -> Walk:
        return self.trajectory.walk(self.counts, at[:-1].view(self.shape), self.Y, at[-1].exp())

    def free_directions(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """(C, …) and (R [+ 1], …): what is left of the movement besides the largest directions,
        those of missing samples."""
        weighted = self.weight[:, None] * self.walk(at).remainder
        if self.missing == 0:
            return torch.eye(len(weighted)).to(weighted), torch.eye(weighted.shape[1]).to(weighted)
        left, _, right = torch.linalg.svd(weighted, full_matrices=True)
        return left[:, self.missing :], right[self.missing :].T

    def equations(self, point: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """What must vanish, in units of the noise."""
        weighted = self.weight[:, None] * self.walk(point).remainder
        return weighted.flatten() if self.missing == 0 else (left.T @ weighted @ right).flatten()

    def reweighted(self, at: Tensor) -> None:
        """The noise model's weights at a solution: the client rounds its own predictions, in
        proportion to the features."""
        observation, walk = self.trajectory.observation, self.walk(at)
        sizes = walk.T.norm(dim=1, keepdim=True)
        share = walk.E.norm(dim=1, keepdim=True) / (walk.P - self.Y).norm(
            dim=1, keepdim=True
        ).clamp_min(1e-300)
        relative = (walk.P * (1 + 0.5 * sizes * observation.row_norms)).square() + self.Y
        client = observation.client_precision * ((share * sizes).square() * relative).sum(0).sqrt()
        self.weight = torch.rsqrt(observation.weight.pow(-2) + client.square())

    def scatter(self, here: Here) -> tuple[float, Tensor | None]:
        """The misfit, and (m,) the variance of every row of T with that of its features outside the
        span of A."""
        at, J = here.at, here.jacobian
        m, R = self.shape
        # Columns sum to zero: one row says nothing new.
        equations = len(here.residual) - here.right.shape[1] - m * R - self.rate_free
        misfit = float(here.cost / max(equations, 1)) ** 0.5
        spread = max(misfit, 1.0) ** 2
        # The prior that features are not larger than they came out: a direction nothing determines
        # has an error of 100 %.
        prior = torch.cat([self.sizes(at).pow(-2).repeat_interleave(R), at.new_ones(1)]) * spread
        factor, failed = torch.linalg.cholesky_ex(J.T @ J + torch.diag(prior))
        if equations < SPARE or bool(failed):
            return misfit, None
        variance = torch.cholesky_inverse(factor).diagonal()[:-1].view(m, R).sum(1)
        return misfit, (variance + self._outside(at)) * spread

    def sizes(self, at: Tensor) -> Tensor:
        """(m,) how large a row of T may be at most."""
        return at[:-1].view(self.shape).norm(dim=1).clamp_min(1e-300)

    def columns(self, at: Tensor) -> Tensor:
        """(C, m) what one unit of every row of T adds to the movement's columns."""
        return self.walk(at).E.T

    def _outside(self, at: Tensor) -> Tensor:
        """(m,) noise outside the span of A: features are a least-squares solution and pass on the
        noise of every entry."""
        observation = self.trajectory.observation
        columns, H = self.columns(at) / observation.noise.level[:, None], observation.A.shape[1]
        if self.missing:
            weighted = self.weight[:, None] * self.walk(at).remainder
            free = torch.linalg.svd(weighted, full_matrices=False)[0][:, : self.missing]
            free = free / (self.weight * observation.noise.level)[:, None]
            columns = torch.cat([columns, free * columns.norm()], dim=1)
        sizes = torch.cat(
            [self.sizes(at), columns.new_full((columns.shape[1] - self.shape[0],), torch.inf)]
        )
        normal = columns.T @ columns + torch.diag(H / sizes.square())
        scale = normal.diagonal().rsqrt()
        inverse = torch.linalg.inv(scale[:, None] * normal * scale).diagonal() * scale.square()
        return H * inverse[: self.shape[0]].clamp_min(0)


def polish(trajectory: Trajectory, samples: Samples, missing: int) -> Polished:
    """The samples solved on together, and what the noise and the misfit do to their features."""
    polisher = Polisher(trajectory, samples, missing)
    here = minimized(polisher, polisher.start(samples), 20)
    polisher.reweighted(here.at)
    here = minimized(polisher, here.at, 10)
    T, rate = here.at[:-1].view(polisher.shape), float(here.at[-1].exp())
    misfit, variance = polisher.scatter(here)
    size = T.norm(dim=1).clamp_min(1e-300)
    unknown = torch.full_like(size, torch.inf)
    errors = unknown if variance is None else (variance.sqrt() / size).nan_to_num(nan=torch.inf)
    return Polished(replace(samples, T=T, rate=rate), misfit, errors)


class _Movement(NonlinearProblem):
    """The equations at rows of one point: each point has its own free directions."""

    def __init__(self, polisher: Polisher) -> None:
        self.polisher = polisher

    def linearize(self, s: Tensor) -> Normal:
        here = Here(self.polisher, s[0])
        return Normal(here.cost[None], here.gradient[None], here.normal_matrix[None], self.costs)

    def costs(self, s: Tensor) -> Tensor:
        return Here(self.polisher, s[0]).cost[None]


def minimized(polisher: Polisher, at: Tensor, steps: int) -> Here:
    """Where the equations' squares are least; below the noise they need not be pursued further."""
    noise = float(Here(polisher, at).residual.numel())
    ends = descend(_Movement(polisher), at[None], Budget(steps=steps), StoppingRule(noise=noise))
    return Here(polisher, ends.s[0])
