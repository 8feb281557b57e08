"""Samples of the first steps, solved for together: what they leave of the movement must have the rank of what is missing.

With r samples left out, the remainder X − Σ (theirs) has rank r exactly, whatever those are. So the squares of its singular values
beyond the r-th, in units of the noise, are minimised by Gauss–Newton with Levenberg's damping; with none left out that is all of
the remainder. Only the samples' own T and, where it is unknown, the learning rate are sought.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.separate.local_steps.trajectory import Trajectory, Walk

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
class _Here:
    walk: Walk
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

    def here(self, at: Tensor) -> _Here:
        walk = self.walk(at)
        weighted = self.weight[:, None] * walk.remainder
        if self.missing == 0:
            one = torch.eye(weighted.shape[1], dtype=weighted.dtype, device=weighted.device)
            return _Here(walk, weighted.flatten(), self._identity(len(weighted)), one)
        left, _, right = torch.linalg.svd(weighted, full_matrices=True)
        left, right = left[:, self.missing :], right[self.missing :].T
        return _Here(walk, (left.T @ weighted @ right).flatten(), left, right)

    def jacobian(self, at: Tensor, here: _Here) -> Tensor:
        """(equations, unknowns); a rate that is known has no column of its own, but one of zeros."""

        def residual(point: Tensor) -> Tensor:
            weighted = self.weight[:, None] * self.walk(point).remainder
            if self.missing == 0:
                return weighted.flatten()
            return (here.left.T @ weighted @ here.right).flatten()

        J: Tensor = torch.func.jacfwd(residual)(at)
        if not self.rate_free:
            J[:, -1] = 0
        return J

    def reweighted(self, at: Tensor) -> None:
        """The noise model's weights at a solution: the client rounds its own predictions, in proportion to the features."""
        observation, walk = self.trajectory.observation, self.walk(at)
        sizes = at[:-1].view(self.shape).norm(dim=1, keepdim=True)
        share = walk.E.norm(dim=1, keepdim=True) / (walk.P - self.Y).norm(dim=1, keepdim=True).clamp_min(1e-300)
        relative = (walk.P * (1 + 0.5 * sizes * observation.row_norms)).square() + self.Y
        client = observation.client_precision * ((share * sizes).square() * relative).sum(0).sqrt()
        self.weight = torch.rsqrt(observation.weight.pow(-2) + client.square())

    def _identity(self, size: int) -> Tensor:
        return torch.eye(size, dtype=self.weight.dtype, device=self.weight.device)


def polish(
    trajectory: Trajectory, samples: Samples, missing: int, *, rate_free: bool = False, iterations: int = 30
) -> Polished:
    """The samples solved on together, and how sure they are."""
    polisher = Polisher(trajectory, samples, missing, rate_free)
    at = _descend(polisher, polisher.start(samples), iterations)
    polisher.reweighted(at)
    at = _descend(polisher, at, 10)
    T, rate = at[:-1].view(polisher.shape), float(at[-1].exp())
    return _certified(polisher, at, replace(samples, T=T, rate=rate))


def _descend(polisher: Polisher, at: Tensor, iterations: int) -> Tensor:
    here, damping, growth = polisher.here(at), 1e-3, 2.0
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
        done = there.cost > 0.999 * here.cost
        at, here, J = at + step, there, None
        damping, growth = max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), 1e-14), 2.0
        if done:
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


def _certified(polisher: Polisher, at: Tensor, samples: Samples) -> Polished:
    """What the noise and the misfit do to the features, through the inverse of the normal matrix."""
    here = polisher.here(at)
    J = polisher.jacobian(at, here)
    m, R = polisher.shape
    rows, columns = here.left.shape[1], here.right.shape[1]
    equations = (rows - 1) * columns - m * R - polisher.rate_free  # columns sum to zero: one row says nothing new
    misfit = (here.cost / max(equations, 1)) ** 0.5
    size = samples.T.norm(dim=1).clamp_min(1e-300)
    spread = max(misfit, 1.0) ** 2
    prior = torch.cat([size.pow(-2).repeat_interleave(R), size.new_ones(1)]) * spread
    factor, failed = torch.linalg.cholesky_ex(J.T @ J + torch.diag(prior))
    if equations < _SPARE or bool(failed):
        return Polished(samples, misfit, torch.full_like(size, torch.inf))
    variance = torch.cholesky_inverse(factor).diagonal()[:-1].view(m, R).sum(1) * spread
    total = variance + _outside(polisher, here).square() * spread
    return Polished(samples, misfit, (total.sqrt() / size).nan_to_num(nan=torch.inf))


def _outside(polisher: Polisher, here: _Here) -> Tensor:
    """(m,) noise outside the span of A: features are a least-squares solution of E ᵀ F = X and pass on the noise of every entry."""
    observation = polisher.trajectory.observation
    columns = here.walk.E.T / observation.noise.level[:, None]
    if polisher.missing:
        free = torch.linalg.svd(polisher.weight[:, None] * here.walk.remainder, full_matrices=False)[0]
        free = free[:, : polisher.missing] / (polisher.weight * observation.noise.level)[:, None]
        columns = torch.cat([columns, free * columns.norm() / max(polisher.missing, 1) ** 0.5], dim=1)
    inverse: Tensor = torch.linalg.pinv(columns)
    noise: Tensor = inverse[: polisher.shape[0]].norm(dim=1) * observation.A.shape[1] ** 0.5
    return noise
