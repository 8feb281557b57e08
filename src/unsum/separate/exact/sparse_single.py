"""One sample at a time in a crowded batch, where its own equations leave it open and the zeros of its features do not.

Three things hold for a sample's t (R unknowns), whatever the other samples are:
- N (softmax(t K + b) − e_y) = 0, where the rows of N are orthogonal to the columns of U: C − R equations (`single`);
- t·w = 1 with U w = ∇b, since the bias is a feature that is 1 for everybody, so that T w = 1;
- t A ≥ 0 after a ReLU, and exactly 0 for some of the H features: an equation each, but nobody says which.
Wells around 0 that become narrower draw entries in; a wall keeps them from becoming negative. α q·t = 1 (`single`) is not
used, and remains to check what comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.deadline import out_of_time
from unsum.equation.observation import Observation
from unsum.separate.exact.single import HELD

_NORMALIZED = 10.0  # weight of t·w = 1 while sharpening is still to come; its w is only as good as the faintest sample
_REFINED_NORMALIZED = 1e-2
_OPENING = (1.0, 0.03)  # the first wells: none, behind a low wall
_NARROWING, _NARROWEST = 0.7, 2e-3  # of a well, from one stage to the next, in units of a usual feature
_OPENING_STEPS, _STEPS, _SHARP_STEPS = 40, 10, 3
_LOWEST_WALL = 0.1
_SHARP = 0.1  # weight of an entry's zero against the softmax's equations
_BLUNT, _SHARPEST = 1e-2, 1e-6  # widths between which entries are told from zeros
_ZERO = 3e-5  # of a usual feature, below which an entry is zero


@dataclass(frozen=True)
class Wells:
    """How the zeros pull: depth ν of a well, height of the wall in front of negative entries, weight μ of the softmax."""

    depth: float
    wall: float
    softmax: float


class SparseSamples:
    """The equations of one observation; `size` is that of a usual feature."""

    def __init__(self, observation: Observation, grad_b: Tensor, size: float) -> None:
        self.observation, self.size = observation, size
        self.A = observation.A / size
        self.N = torch.linalg.qr(observation.U, mode="complete").Q[:, observation.rank :].T
        self.w = torch.linalg.lstsq(observation.U, grad_b[:, None]).solution[:, 0]

    def hunt(self, T: Tensor, labels: Tensor, wells: Wells) -> Tensor:
        """(n, R) where the starts are drawn to, sharpened; most of the rows are no samples."""
        return self._in_parts(lambda t, y: self._hunt(t, y, wells), T, labels)

    def sharpen(self, T: Tensor, labels: Tensor, width: float = _BLUNT) -> Tensor:
        """Newton's method with the small entries taken for zeros, those beyond `width` less and less."""
        T = self._in_parts(lambda t, y: self._sharpen(t, y, width), T, labels)
        return torch.where(torch.isfinite(T).all(1, keepdim=True), T, 0.0)

    def zeros(self, T: Tensor) -> Tensor:
        """(n,) how many features are zero."""
        return ((T @ self.A).abs() < _ZERO).sum(1)

    def positive(self, T: Tensor) -> Tensor:
        """(n,) bool: whether no feature is negative."""
        return (T @ self.A).amin(1) > -3 * _ZERO

    def _in_parts(self, work: Callable[[Tensor, Tensor], Tensor], T: Tensor, labels: Tensor) -> Tensor:
        step = max(1, HELD // (len(self.A) * max(self.A.shape)))
        return torch.cat([work(t, y) for t, y in zip(T.split(step), labels.split(step), strict=True)])

    def _hunt(self, T: Tensor, labels: Tensor, wells: Wells) -> Tensor:
        width, wall = _OPENING
        T = self._settle(T, labels, Wells(0.0, wall, 1.0), width, wall, _OPENING_STEPS)
        while width > _NARROWEST:
            wall = max(_LOWEST_WALL, wells.wall * wells.depth**0.5 / width)
            T = self._settle(T, labels, wells, width, wall, _STEPS)
            width *= _NARROWING
        return self._sharpen(torch.where(torch.isfinite(T), T, 0.0), labels, _BLUNT)

    def _settle(self, T: Tensor, labels: Tensor, wells: Wells, width: float, wall: float, iterations: int) -> Tensor:
        """Damped Gauss–Newton on the softmax, t·w = 1, the wall and wells ν f²/(f² + width²)."""
        P, outside = self._softmax(T, labels)
        cost = self._cost(T, outside, wells, width, wall)
        damping = torch.full_like(cost, 1e-2)
        for _ in range(iterations):
            if out_of_time("samples by the zeros of their features"):
                break
            f = T @ self.A
            pull = wall**2 * (f < 0) + wells.depth * width**2 / (f.square() + width**2).square()
            M, g = self._normal_equations(T, P, outside, pull, wells.softmax, _NORMALIZED)
            diagonal = M.diagonal(dim1=1, dim2=2)
            diagonal = diagonal + 1e-3 * diagonal.mean(1, keepdim=True)
            step, _ = torch.linalg.solve_ex(M + torch.diag_embed(damping[:, None] * diagonal), g)
            there = T - step
            P_there, outside_there = self._softmax(there, labels)
            new_cost = self._cost(there, outside_there, wells, width, wall)
            better = new_cost < cost
            rows = better[:, None]
            T, P = torch.where(rows, there, T), torch.where(rows, P_there, P)
            outside, cost = torch.where(rows, outside_there, outside), torch.where(better, new_cost, cost)
            damping = torch.where(better, damping / 3, damping * 4).clamp(1e-9, 1e6)
        return T

    def _sharpen(self, T: Tensor, labels: Tensor, width: float) -> Tensor:
        while width > _SHARPEST:
            for _ in range(_SHARP_STEPS):
                P, outside = self._softmax(T, labels)
                f = T @ self.A
                near = (1 + (f / width).square()).reciprocal().square()
                pull = _SHARP**2 * torch.where(f < 0, 1.0, near)
                M, g = self._normal_equations(T, P, outside, pull, 1.0, _REFINED_NORMALIZED)
                ridge = 1e-9 * M.diagonal(dim1=1, dim2=2) + 1e-300
                T = T - torch.linalg.solve_ex(M + torch.diag_embed(ridge), g)[0]
            width /= 2
        return T

    def _softmax(self, T: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """P (n, C) and N (P − e_y) (n, C − R)."""
        P = torch.softmax(T @ self.observation.K + self.observation.b, dim=1)
        return P, P @ self.N.T - self.N.T[labels]

    def _cost(self, T: Tensor, outside: Tensor, wells: Wells, width: float, wall: float) -> Tensor:
        f = T @ self.A
        drawn = wells.depth * (f.square() / (f.square() + width**2)) + (wall * f.clamp_max(0)).square()
        missed = _NORMALIZED * (T @ self.w - 1) / self.w.norm()
        cost: Tensor = wells.softmax**2 * outside.square().sum(1) + drawn.sum(1) + missed.square()
        return cost

    def _normal_equations(
        self, T: Tensor, P: Tensor, outside: Tensor, pull: Tensor, softmax: float, normalized: float
    ) -> tuple[Tensor, Tensor]:
        """JᵀJ (n, R, R) and Jᵀr (n, R); `pull` (n, H) holds the weight of every entry of t A."""
        K = self.observation.K
        J = (K * P[:, None, :] - (P @ K.T)[:, :, None] * P[:, None, :]) @ self.N.T
        unit = normalized * self.w / self.w.norm()
        missed = normalized * (T @ self.w - 1) / self.w.norm()
        M = softmax**2 * (J @ J.mT) + (self.A * pull[:, None, :]) @ self.A.T + unit[:, None] * unit
        g = softmax**2 * (J @ outside[:, :, None])[:, :, 0] + (pull * (T @ self.A)) @ self.A.T + missed[:, None] * unit
        return M, g
