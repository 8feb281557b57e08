"""One sample at a time: its p − e_y must lie in the span of U, whatever the other samples are.

R unknowns t and C − R equations per sample: Π⊥ D (softmax(t K + b) − e_y) = 0, where D weighs rows
and Π projects on the span of D U. With p − e_y = U q, the coupling T q = e_i/α adds α q·t = 1,
which keeps t from running off to where p = e_y and everything vanishes. Many starts are refined at
once, and none is disturbed by another one's failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.descend import NonlinearProblem, Normal, StoppingRule, descend
from unsum.equation.observation import Observation
from unsum.running.deadline import out_of_time

_UNTRIED = "samples one at a time"
# Four steps of 5 % or eight refusals in a row end a start: batches of trained heads give as many
# samples as with smaller gains and more refusals. Chosen by: arbitrary budget.
_DESCENT = Budget(steps=150, stalled=0.95, patience=4, refusals=8)
# [roundings of the client] relative residual below which a start that hardly falls has arrived.
# Chosen by: arbitrary margin.
_NOISES = 10.0


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
        self.entries = observation.K.numel() + 1

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
        self, T: Tensor, labels: Tensor, alpha: float | None, steps: int = _DESCENT.steps
    ) -> Tensor:
        """Follow every (t, y) to its root; `alpha` None leaves the coupling out."""
        if len(T) == 0 or out_of_time(_UNTRIED):
            return T
        problem = _Coupled(self, labels, self.state(T, labels).size, alpha)
        precision = self.observation.client_precision + self.observation.noise.relative
        rule = StoppingRule(noise=(_NOISES * precision) ** 2, untried=_UNTRIED)
        return descend(problem, T, replace(_DESCENT, steps=steps), rule).s

    def steps(self, T: Tensor, labels: Tensor, alpha: float) -> Tensor:
        """(n,) how far each would still go, without damping, relative to its length."""

        def left(t: Tensor, y: Tensor) -> Tensor:
            if out_of_time(_UNTRIED):
                return torch.full_like(t[:, 0], torch.inf)
            state = self.state(t, y)
            N, g = self.normal_equations(t, y, state, state.size, alpha)
            N = N + torch.diag_embed(1e-13 * N.diagonal(dim1=1, dim2=2) + 1e-300)
            return torch.div(torch.linalg.solve_ex(N, g)[0].norm(dim=1), t.norm(dim=1))

        return in_parts(left, self.entries, T, labels)

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

    def normal_equations(
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


@dataclass
class _Coupled(NonlinearProblem):
    """The equations of starts (S, R) with labels of their own, in units of ‖D (p − e_y)‖ where each
    began, (S,); `alpha` None leaves the coupling out."""

    singles: SingleSamples
    labels: Tensor
    unit: Tensor
    alpha: float | None
    # where costs were computed last, which mostly is where steps lead
    last: tuple[Tensor, SampleState] | None = None

    @property
    def entries(self) -> int:
        return self.singles.entries

    def linearize(self, s: Tensor) -> Normal:
        last, self.last = self.last, None
        state = last[1] if last is not None and last[0] is s else self.singles.state(s, self.labels)
        weight = torch.zeros_like(self.unit) if self.alpha is None else self.unit
        N, g = self.singles.normal_equations(s, self.labels, state, weight, self.alpha or 1.0)
        square = self.unit.square()
        return Normal(self._cost(state), g / square[:, None], N / square[:, None, None], self.costs)

    def take(self, rows: Tensor) -> _Coupled:
        return replace(self, labels=self.labels[rows], unit=self.unit[rows], last=None)

    def costs(self, s: Tensor) -> Tensor:
        self.last = s, self.singles.state(s, self.labels)
        return self._cost(self.last[1])

    def _cost(self, state: SampleState) -> Tensor:
        cost: Tensor = (state.outside / self.unit[:, None]).square().sum(1)
        return cost if self.alpha is None else cost + (self.alpha * state.coupling - 1).square()


def in_parts(work: Callable[..., Tensor], entries: int, *rows: Tensor) -> Tensor:
    """`work` on as many starts, their labels and so on at a time as memory allows; each has so many
    entries of a Jacobian."""
    step = _DESCENT.at_once(entries, rows[0].device.type)
    return torch.cat(
        [work(*part) for part in zip(*(tensor.split(step) for tensor in rows), strict=True)]
    )


def _first(labels: Tensor) -> Tensor:
    return labels if labels.ndim == 1 else labels[:, 0]
