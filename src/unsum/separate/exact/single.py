"""One sample at a time: its p − e_y must lie in the span of U, whatever the other samples are.

R unknowns t and C − R equations per sample: Π⊥ D (softmax(t K + b) − e_y) = 0, where D weighs rows
and Π projects on the span of D U. With p − e_y = U q, the coupling T q = e_i/α adds α q·t = 1,
which keeps t from running off to where p = e_y and everything vanishes. Many starts are refined at
once, and none is disturbed by another one's failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.equation.observation import Observation
from unsum.running.deadline import out_of_time

HELD = 1 << 24  # entries of a batched Jacobian at a time on a GPU: 128 MiB
_HELD_ON_CPU = 1 << 22  # and on a CPU: a step over more takes so long that no time limit is kept
_LOOK = 5  # steps after which starts that have arrived are left alone
_FALLING = 0.99  # of its cost that a start must have lost to go on


@dataclass(frozen=True)
class SampleState:
    """What softmax and the span say of n starts."""

    P: Tensor  # (n, C)
    amount: Tensor  # (n,) how far the target is from the hard one: e, or a mixture's second share
    outside: Tensor  # (n, C) Π⊥ D (P − e_y)
    size: Tensor  # (n,) ‖D (P − e_y)‖
    q: Tensor  # (n, R)
    coupling: Tensor  # (n,) q·t: 1/α for every true sample, 0 for the trivial root at infinity


class SingleSamples:
    """The per-sample equations of one observation; rows of U that are labels get their own weight
    in `weight`.

    Targets are hard or smoothed, (1 − C e) e_y + e. With `floor` None each sample finds its own e,
    which is linear and costs one equation. With pairs (n, 2) in the place of labels they are mixed,
    (1 − μ) e_y + μ e_z, and each finds its own μ.
    """

    def __init__(self, observation: Observation, weight: Tensor, floor: float | None = 0.0) -> None:
        self.observation = observation
        self.floor = floor
        self.D = (weight / weight.max()).sqrt()
        self.Q, self.triangle = torch.linalg.qr(self.D[:, None] * observation.U)
        self.deviation = 1 / weight
        self._entries = observation.K.numel() + 1

    def labels(self, T: Tensor) -> Tensor:
        """(n,) for each t the class y whose p − (1 − C e) e_y − e is nearest to the span of U."""
        floor = self.floor or 0.0
        X = (torch.softmax(T @ self.observation.K + self.observation.b, dim=1) - floor) * self.D
        outside = X - (X @ self.Q) @ self.Q.T
        leverage, hard = self.Q.square().sum(1), (1 - len(self.D) * floor) * self.D
        distance = (
            outside.square().sum(1, keepdim=True)
            - 2 * outside * hard
            + hard.square() * (1 - leverage)
        )
        size = X.square().sum(1, keepdim=True) - 2 * X * hard + hard.square()
        return torch.argmin(distance / size, dim=1)

    def refine(
        self, T: Tensor, labels: Tensor, alpha: float | None, iterations: int = 150
    ) -> Tensor:
        """Damped Gauss–Newton on every (t, y) on its own; `alpha` None leaves the coupling out."""
        return in_parts(
            lambda t, y: self._refine(t, y, alpha, iterations), self._entries, T, labels
        )

    def steps(self, T: Tensor, labels: Tensor, alpha: float) -> Tensor:
        """(n,) how far each would still go, without damping, relative to its length."""

        def left(t: Tensor, y: Tensor) -> Tensor:
            if out_of_time("samples one at a time"):
                return torch.full_like(t[:, 0], torch.inf)
            state = self.state(t, y)
            N, g = self._normal_equations(t, y, state, state.size, alpha)
            N = N + torch.diag_embed(1e-13 * N.diagonal(dim1=1, dim2=2) + 1e-300)
            return torch.div(torch.linalg.solve_ex(N, g)[0].norm(dim=1), t.norm(dim=1))

        return in_parts(left, self._entries, T, labels)

    def slack(self, T: Tensor, labels: Tensor, faint: bool) -> Tensor:
        """(n,) how much of p − e_y may lie outside the span of U, relatively, for a sample.

        A `faint` one has p so near e_y that the client's rounding of p − 1 is a large part of it.
        That excuse would serve roots far out as well, where p → e_y, which are no samples.
        """
        P = torch.softmax(T @ self.observation.K + self.observation.b, dim=1)
        size = 1 - P[torch.arange(len(T), device=T.device), _first(labels)]
        noise = self.observation.noise.relative
        rounding: Tensor = 3 * self.observation.client_precision / size.clamp_min(1e-300)
        return 1e-3 + 100 * noise + (rounding if faint else torch.zeros_like(rounding))

    def outside(self, T: Tensor, labels: Tensor) -> Tensor:
        """(n,) the share of p − e_y that lies outside the span of U."""
        state = self.state(T, labels)
        return torch.div(state.outside.norm(dim=1), state.size.clamp_min(1e-300))

    def misfits(self, T: Tensor, labels: Tensor) -> Tensor:
        """(n,) distance from the span of U in units of what noise alone explains."""
        observation, state = self.observation, self.state(T, labels)
        size = 1 + 0.5 * T.norm(dim=1, keepdim=True) * observation.row_norms
        Y = torch.nn.functional.one_hot(_first(labels), observation.classes)
        client = observation.client_precision**2 * ((state.P * size).square() + Y)
        variance = client + (state.q.norm(dim=1, keepdim=True) * self.deviation).square()
        allowed = (variance * self.D.square()).sum(1).sqrt()
        return torch.div(state.outside.norm(dim=1), allowed)

    def state(self, T: Tensor, labels: Tensor) -> SampleState:
        P = torch.softmax(T @ self.observation.K + self.observation.b, dim=1)
        X = P.clone()
        X[torch.arange(len(T), device=T.device), _first(labels)] -= 1
        X = X * self.D
        if self._is_known(labels):
            amount = X.new_full((len(X),), self.floor or 0.0)
            X = X + amount[:, None] * self._change(labels)[0] if self.floor else X
        else:
            W, W_outside = self._change(labels)
            amount = -(X * W_outside).sum(1) / W_outside.square().sum(1).clamp_min(1e-300)
            X = X + amount[:, None] * W
        inside = X @ self.Q
        q = torch.linalg.solve_triangular(self.triangle, inside.T, upper=True).T
        return SampleState(P, amount, X - inside @ self.Q.T, X.norm(dim=1), q, (q * T).sum(1))

    def _is_known(self, labels: Tensor) -> bool:
        return labels.ndim == 1 and self.floor is not None

    def _change(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(n, C) what a unit of e, or of μ, adds to D (p − y), and the part of it outside the
        span."""
        each, C = torch.arange(len(labels), device=labels.device), len(self.D)
        W = self.D.new_full((len(labels), C), -1.0 if labels.ndim == 1 else 0.0)
        W[each, _first(labels)] += C if labels.ndim == 1 else 1
        if labels.ndim == 2:
            W[each, labels[:, 1]] -= 1
        W = W * self.D
        return W, W - (W @ self.Q) @ self.Q.T

    def _refine(self, T: Tensor, labels: Tensor, alpha: float | None, iterations: int) -> Tensor:
        if out_of_time("samples one at a time"):  # what is asked for first takes as long as a step
            return T
        size = self.state(T, labels).size
        importance = torch.zeros_like(size) if alpha is None else size
        damping, cost = torch.full_like(size, 1e-3), torch.full_like(size, torch.inf)
        T, under_way = T.clone(), torch.arange(len(T), device=T.device)
        for _ in range(0, iterations, _LOOK):
            trying = under_way
            before = cost[trying]
            T[trying], cost[trying], damping[trying] = self._descend(
                T[trying], labels[trying], importance[trying], alpha or 1.0, damping[trying]
            )
            under_way = trying[cost[trying] < _FALLING * before]
            if len(under_way) == 0:
                break
        return T

    def _descend(
        self, T: Tensor, labels: Tensor, importance: Tensor, alpha: float, damping: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A few damped steps of every start; where they end, with which cost and damping."""
        state = self.state(T, labels)
        cost = _cost(state, importance, alpha)
        for _ in range(_LOOK):
            if out_of_time("samples one at a time"):
                break
            N, g = self._normal_equations(T, labels, state, importance, alpha)
            scaled = damping[:, None] * N.diagonal(dim1=1, dim2=2)
            step, _ = torch.linalg.solve_ex(N + torch.diag_embed(scaled + 1e-300), g)
            trial = T - step
            there = self.state(trial, labels)
            new_cost = _cost(there, importance, alpha)
            better = new_cost < cost
            T, cost = torch.where(better[:, None], trial, T), torch.where(better, new_cost, cost)
            pairs = zip(vars(there).values(), vars(state).values(), strict=True)
            state = SampleState(
                *(
                    torch.where(better if new.ndim == 1 else better[:, None], new, old)
                    for new, old in pairs
                )
            )
            damping = torch.where(better, damping / 5, damping * 4).clamp(1e-14, 1e10)
        return T, cost, damping

    def _normal_equations(
        self, T: Tensor, labels: Tensor, state: SampleState, importance: Tensor, alpha: float
    ) -> tuple[Tensor, Tensor]:
        K = self.observation.K
        X = (self.D * state.P)[:, :, None] * (K.T - (state.P @ K.T)[:, None, :])  # (n, C, R)
        if not self._is_known(labels):  # e or μ follows every step
            W, W_outside = self._change(labels)
            follows = (W_outside[:, None, :] @ X) / W_outside.square().sum(1).clamp_min(1e-300)[
                :, None, None
            ]
            X = X - W[:, :, None] * follows
        inside = self.Q.T @ X
        change_q = torch.linalg.solve_triangular(self.triangle, inside, upper=True)
        coupling = alpha * importance[:, None] * (state.q + (change_q.mT @ T[:, :, None])[:, :, 0])
        N = X.mT @ X - inside.mT @ inside + coupling[:, :, None] * coupling[:, None, :]
        g = (X.mT @ state.outside[:, :, None])[:, :, 0]
        g = g + coupling * (importance * (alpha * state.coupling - 1))[:, None]
        return N, g


def in_parts(work: Callable[..., Tensor], entries: int, *rows: Tensor) -> Tensor:
    """`work` on as many starts, their labels and so on at a time as memory allows; each has so many
    entries of a Jacobian."""
    step = max(1, (HELD if rows[0].is_cuda else _HELD_ON_CPU) // entries)
    return torch.cat(
        [work(*part) for part in zip(*(tensor.split(step) for tensor in rows), strict=True)]
    )


def _first(labels: Tensor) -> Tensor:
    return labels if labels.ndim == 1 else labels[:, 0]


def _cost(state: SampleState, importance: Tensor, alpha: float) -> Tensor:
    return state.outside.square().sum(1) + (importance * (alpha * state.coupling - 1)).square()
