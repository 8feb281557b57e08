"""Samples of the first steps, solved for together: what they leave of the movement must have the rank of what is missing.

With r samples left out, the remainder X − Σ (theirs) has rank r exactly, whatever those are. So the squares of its singular
values beyond the r-th, in units of the noise, are minimized by Gauss–Newton with Levenberg's damping; with none left out that is
all of the remainder. Only the samples' own T and, where it is unknown, the learning rate are sought.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.separate.local_steps.trajectory import Trajectory, Walk

EXPLAINED = 4.0  # misfit of a solution, in units of the noise
_SPARE = 3  # equations left over without which a perfect fit proves nothing


@dataclass(frozen=True)
class Samples:
    """Samples of the first steps: `counts` of each, rows of T (m, R) and their class numbers (m,), step by step."""

    counts: tuple[int, ...]
    T: Tensor
    labels: Tensor
    rate: float

    @property
    def number(self) -> int:
        return len(self.T)


@dataclass(frozen=True)
class Polished:
    """`misfit` is the residual's root mean square in units of the noise; `errors` (m,) what is predicted for the features."""

    samples: Samples
    misfit: float
    errors: Tensor


@dataclass(frozen=True)
class Here:
    """The equations at one point."""

    residual: Tensor
    left: Tensor  # (C, …) and
    right: Tensor  # (R [+ 1], …): the directions that the missing samples leave free

    @property
    def cost(self) -> float:
        return float(self.residual.square().sum())


class Polisher:
    """The equations for one set of samples; `missing` further ones may be in the movement."""

    def __init__(self, trajectory: Trajectory, samples: Samples, missing: int, rate_free: bool) -> None:
        self.trajectory, self.missing, self.rate_free = trajectory, missing, rate_free
        self.counts = samples.counts
        classes = trajectory.observation.classes
        self.Y = torch.nn.functional.one_hot(samples.labels, classes).to(trajectory.observation.U)
        self.weight = trajectory.observation.weight
        self.shape = samples.T.shape

    def start(self, samples: Samples) -> Tensor:
        rate = samples.T.new_tensor([samples.rate]).log()
        return torch.cat([samples.T.flatten(), rate])

    def walk(self, at: Tensor) -> Walk:
        return self.trajectory.walk(self.counts, at[:-1].view(self.shape), self.Y, at[-1].exp())

    def here(self, at: Tensor) -> Here:
        weighted = self.weight[:, None] * self.walk(at).remainder
        if self.missing == 0:
            left, right = self._identity(weighted.shape[0]), self._identity(weighted.shape[1])
        else:
            left, _, right = torch.linalg.svd(weighted, full_matrices=True)
            left, right = left[:, self.missing :], right[self.missing :].T
        return Here(self.equations(at, left, right), left, right)

    def equations(self, point: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """What must vanish, in units of the noise."""
        weighted = self.weight[:, None] * self.walk(point).remainder
        return weighted.flatten() if self.missing == 0 else (left.T @ weighted @ right).flatten()

    def jacobian(self, at: Tensor, here: Here) -> Tensor:
        """(equations, unknowns); a rate that is known has no column of its own, but one of zeros."""
        J: Tensor = torch.func.jacfwd(lambda point: self.equations(point, here.left, here.right))(at)
        if not self.rate_free:
            J[:, -1] = 0
        return J

    def reweighted(self, at: Tensor) -> None:
        """The noise model's weights at a solution: the client rounds its own predictions, in proportion to the features."""
        observation, walk = self.trajectory.observation, self.walk(at)
        sizes = walk.T.norm(dim=1, keepdim=True)
        share = walk.E.norm(dim=1, keepdim=True) / (walk.P - self.Y).norm(dim=1, keepdim=True).clamp_min(1e-300)
        relative = (walk.P * (1 + 0.5 * sizes * observation.row_norms)).square() + self.Y
        client = observation.client_precision * ((share * sizes).square() * relative).sum(0).sqrt()
        self.weight = torch.rsqrt(observation.weight.pow(-2) + client.square())

    def scatter(self, at: Tensor, here: Here) -> tuple[float, Tensor | None]:
        """The misfit, and (m,) the variance of every row of T with that of its features outside the span of A."""
        J = self.jacobian(at, here)
        m, R = self.shape
        # Columns sum to zero: one row says nothing new.
        equations = len(here.residual) - here.right.shape[1] - m * R - self.rate_free
        misfit = (here.cost / max(equations, 1)) ** 0.5
        spread = max(misfit, 1.0) ** 2
        # The prior that features are not larger than they came out: a direction nothing determines has an error of 100 %.
        prior = torch.cat([self.sizes(at).pow(-2).repeat_interleave(R), at.new_ones(1)]) * spread
        factor, failed = torch.linalg.cholesky_ex(J.T @ J + torch.diag(prior))
        if equations < _SPARE or bool(failed):
            return misfit, None
        variance = torch.cholesky_inverse(factor).diagonal()[:-1].view(m, R).sum(1)
        return misfit, (variance + self._outside(at)) * spread

    def sizes(self, at: Tensor) -> Tensor:
        """(m,) how large a row of T may be at most."""
        sizes: Tensor = at[:-1].view(self.shape).norm(dim=1)
        return sizes.clamp_min(1e-300)

    def columns(self, at: Tensor) -> Tensor:
        """(C, m) what one unit of every row of T adds to the movement's columns."""
        E: Tensor = self.walk(at).E
        return E.T

    def _outside(self, at: Tensor) -> Tensor:
        """(m,) noise outside the span of A: features are a least-squares solution and pass on the noise of every entry."""
        observation = self.trajectory.observation
        columns, H = self.columns(at) / observation.noise.level[:, None], observation.A.shape[1]
        if self.missing:
            weighted = self.weight[:, None] * self.walk(at).remainder
            free = torch.linalg.svd(weighted, full_matrices=False)[0][:, : self.missing]
            free = free / (self.weight * observation.noise.level)[:, None]
            columns = torch.cat([columns, free * columns.norm()], dim=1)
        sizes = torch.cat([self.sizes(at), columns.new_full((columns.shape[1] - self.shape[0],), torch.inf)])
        normal = columns.T @ columns + torch.diag(H / sizes.square())
        scale = normal.diagonal().rsqrt()
        inverse = torch.linalg.inv(scale[:, None] * normal * scale).diagonal() * scale.square()
        outside: Tensor = H * inverse[: self.shape[0]].clamp_min(0)
        return outside

    def _identity(self, size: int) -> Tensor:
        return torch.eye(size, dtype=self.weight.dtype, device=self.weight.device)


def polish(
    trajectory: Trajectory, samples: Samples, missing: int, *, rate_free: bool = False, iterations: int = 30
) -> Polished:
    """The samples solved on together, and how sure they are."""
    polisher = Polisher(trajectory, samples, missing, rate_free)
    at = descend(polisher, polisher.start(samples), iterations)
    polisher.reweighted(at)
    at = descend(polisher, at, 10)
    T, rate = at[:-1].view(polisher.shape), float(at[-1].exp())
    return certified(polisher, at, replace(samples, T=T, rate=rate))


def descend(polisher: Polisher, at: Tensor, iterations: int) -> Tensor:
    here, damping, growth, stalled = polisher.here(at), 1e-3, 2.0, 0
    J: Tensor | None = None
    for _ in range(iterations):
        if J is None:
            J = polisher.jacobian(at, here)
            N, g = J.T @ J, J.T @ here.residual
        step = _damped(N, g, damping)
        there = polisher.here(at + step)
        promised = -float(2 * step @ g + (J @ step).square().sum())
        gain = (here.cost - there.cost) / promised if promised > 0 else -1.0
        if not gain > 0:
            damping, growth = damping * growth, growth * 2
            if damping > 1e10 or promised < 1e-12 * here.cost:
                break
            continue
        stalled = stalled + 1 if there.cost > 0.999 * here.cost else 0
        at, here, J = at + step, there, None
        damping, growth = max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), 1e-14), 2.0
        if stalled >= 3 or there.cost < 1e-3 * there.residual.numel():
            break
    return at


def _damped(N: Tensor, g: Tensor, damping: float) -> Tensor:
    diagonal = N.diagonal().clamp_min(float(N.diagonal().max()) * 1e-24 + 1e-300)
    for _ in range(40):
        factor, failed = torch.linalg.cholesky_ex(N + torch.diag(diagonal * damping))
        if not bool(failed):
            step: Tensor = -torch.cholesky_solve(g[:, None], factor)[:, 0]
            return step
        damping *= 10
    return torch.zeros_like(g)


def certified(polisher: Polisher, at: Tensor, samples: Samples) -> Polished:
    """What the noise and the misfit do to the features, through the inverse of the normal matrix."""
    here = polisher.here(at)
    misfit, variance = polisher.scatter(at, here)
    size = samples.T.norm(dim=1).clamp_min(1e-300)
    if variance is None:
        return Polished(samples, misfit, torch.full_like(size, torch.inf))
    return Polished(samples, misfit, (variance.sqrt() / size).nan_to_num(nan=torch.inf))
