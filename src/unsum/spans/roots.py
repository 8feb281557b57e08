"""Samples as roots: what lies in the span of one layer must, once it is activated, lie in the span
of the next.

x = t Â is a sample where act(W x + b) ∈ span(A of the next layer). t has as many entries as there
are directions. A mixture of samples fulfills the first condition and not the second, for the
activation bends. No label, no loss and no other sample enters. What is minimized is ‖outside‖ /
‖all‖, from many starts at once (`engine.descend`). `reflect` brings them near where it can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.descend import ROUNDING, Descent, NonlinearProblem, Normal, StoppingRule
from unsum.engine.descend import descend as follow
from unsum.network.chain import Step
from unsum.network.products import right_product
from unsum.spans.basis import LayerSpan

UNTRIED = "further starts of the spans"
# From random starts roots are reached within twenty steps, and a start that has not come near
# after twelve ends elsewhere. Chosen by: arbitrary budget.
STARTS = Budget(steps=60, damping=0.1, stalled=0.99, patience=4, refusals=4, trial=12)
# From where reflections end, three or four steps lead to rounding. Chosen by: arbitrary budget.
ENDS = replace(STARTS, steps=6, damping=1e-6, trial=None)


@dataclass(frozen=True)
class Further:
    """A second condition: what the next layer, `step`, writes must lie in the span of the layer
    after it."""

    step: Step
    span: LayerSpan


@dataclass(frozen=True)
class Condition(NonlinearProblem):
    """z = s K + c is the layer's output for unknowns s (…, k), x = origin + s directions: affine
    where a bias fixes lengths."""

    step: Step
    here: LayerSpan
    next: LayerSpan
    K: Tensor  # (k, m)
    c: Tensor  # (m,)
    origin: Tensor  # (N,)
    directions: Tensor  # (k, N)
    further: Further | None = None

    @classmethod
    def of(
        cls, step: Step, here: LayerSpan, following: LayerSpan, further: Further | None = None
    ) -> Condition:
        n = step.W.shape[1]
        K = right_product(step.W, here.rows[:, :n].contiguous()).T  # (N, m)
        b = torch.zeros_like(K[0]) if step.b is None else step.b.double()
        origin, directions = here.points
        if not here.has_bias:
            return cls(step, here, following, K, b, origin, directions, further)
        return cls(
            step, here, following, directions @ K, b + origin @ K, origin, directions, further
        )

    @property
    def entries(self) -> int:
        return self.unknowns * self.K.shape[1]

    @property
    def unknowns(self) -> int:
        return len(self.K)

    @property
    def steps(self) -> list[Step]:
        """The layers whose activations must lie in spans."""
        return [self.step] if self.further is None else [self.step, self.further.step]

    @property
    def spans(self) -> list[LayerSpan]:
        """Of the layers that must hold what a sample becomes."""
        return [self.next] if self.further is None else [self.next, self.further.span]

    @property
    def equations(self) -> int:
        return sum(span.rows.shape[1] - len(span) for span in self.spans)

    @property
    def least_misfit(self) -> float:
        """The misfit below which no sample gets, as far as noise goes; no misfit exceeds 1."""
        span = self.next
        noise = span.noise * span.rows.shape[1] ** 0.5
        return min(noise / max(float(span.values[0]), 1e-300), 1.0)

    @property
    def at_once(self) -> int:
        """The number of points whose Jacobians are held at a time."""
        return STARTS.at_once(self.entries, self.K.device.type)

    @property
    def lengths_open(self) -> bool:
        """Whether every multiple of a root is one: no bias in either layer, and an activation that
        keeps proportions."""
        ends = self.c.new_tensor([-1.0, 1.0])
        f = self.step.activation.function
        biased = (
            self.here.has_bias or any(span.has_bias for span in self.spans) or bool(self.c.any())
        )
        return not biased and bool((f(2 * ends) == 2 * f(ends)).all())

    def inputs(self, s: Tensor) -> Tensor:
        """(k, n) what the layer read."""
        rows: Tensor = (self.origin + s @ self.directions) @ self.here.rows
        return rows[:, :-1] if self.here.has_bias else rows

    def unknowns_of(self, X: Tensor) -> Tensor:
        """(…, k) of inputs X (…, n): what of them lies in the span."""
        s: Tensor = (self.here.extended(X) @ self.here.rows.T - self.origin) @ self.directions.T
        return s

    def unknowns_at(self, z: Tensor) -> Tensor:
        """(S, k) whose outputs are closest to z (S, m), by normal equations: W spreads a span
        evenly."""
        square = self.K @ self.K.T
        factor = torch.linalg.cholesky(
            square + 1e-13 * square.trace() * torch.eye(len(square)).to(square)
        )
        s: Tensor = torch.cholesky_solve(self.K @ (z - self.c).T, factor).T
        return s

    def reads(self, s: Tensor) -> list[Tensor]:
        """[(k, m), …] what the following layers read."""
        a = [self.step.activation.function(s @ self.K + self.c)]
        if self.further is not None:
            a.append(self.further.step.activation.function(self.further.step.linear(a[0])))
        return a

    def misfit(self, s: Tensor) -> Tensor:
        """(k,) share of what the next layer reads that lies outside its span; of two layers, both
        shares as one length."""
        reads = zip(self.reads(s), self.spans, strict=True)
        return torch.stack(
            [span.outside(a).norm(dim=-1) / _size(a, span) for a, span in reads]
        ).norm(dim=0)

    def linearize(self, s: Tensor) -> Normal:
        """The relative residual, whose squared norm is that of the misfit."""
        z = s @ self.K + self.c
        # J (S, k, m)
        a, J = self.step.activation.function(z), self.K * self.step.activation.slope(z)[:, None, :]
        cost, gradient, N = relative(a, J, self.next)
        if self.further is None:
            return self._normal(cost, gradient, N)
        step = self.further.step
        z = step.linear(a)
        a, J = (
            step.activation.function(z),
            (J @ step.W.double().T) * step.activation.slope(z)[:, None, :],
        )
        more = relative(a, J, self.further.span)
        return self._normal(cost + more[0], gradient + more[1], N + more[2])

    def _normal(self, cost: Tensor, gradient: Tensor, N: Tensor) -> Normal:
        return Normal(cost, gradient, N, lambda s: self.misfit(s).square(), ROUNDING)


def _size(a: Tensor, span: LayerSpan) -> Tensor:
    return (a.square().sum(-1) + span.has_bias).sqrt().clamp_min(1e-300)


def relative(a: Tensor, J: Tensor, span: LayerSpan) -> tuple[Tensor, Tensor, Tensor]:
    """(r·r (S,), Jᵀr (S, k), JᵀJ (S, k, k)) of r, the part of a outside the span over a's size; J
    (S, k, m) is that of a."""
    size = _size(a, span)
    outside = span.outside(a) / size[:, None]
    inside = J @ span.rows[:, : a.shape[1]].T
    along = (J @ (a / size[:, None])[..., None])[..., 0]  # of the size, per size
    # The size changes as well: d(e/|a|) = P⊥ da/|a| − r (a·da)/|a|².
    cost = outside.square().sum(1)
    to_outside = (J @ outside[:, : a.shape[1], None])[..., 0]
    gradient = (to_outside - cost[:, None] * along) / size[:, None]
    N = J @ J.mT - inside @ inside.mT
    cross = along[:, :, None] * to_outside[:, None, :]
    N = N - cross - cross.mT + cost[:, None, None] * along[:, :, None] * along[:, None, :]
    return cost, gradient, N / size[:, None, None].square()


def starts(condition: Condition, number: int, generator: torch.Generator, *, rows: bool) -> Tensor:
    """(number, k): where `rows`, the rows of ∇W themselves; then a half blends of two of them, and
    a half random mixtures.

    Row i of ∇W mixes the samples that drive unit i, which are few where ReLUs are off; over entry i
    of ∇b it is their weighted mean. Such rows are the best starts: on untrained LeNets one in
    twelve ends in a sample, of random mixtures one in 300. Their median length is that of random
    mixtures too. Without a bias nothing tells lengths, and z of size 1 is as good as any.
    """
    k, device = condition.unknowns, condition.K.device
    means = _row_means(condition)
    length = float(means.norm(dim=1).median()) if len(means) else 1.0
    chosen = (
        [means[torch.randperm(len(means), generator=generator)[:number].to(device)]] if rows else []
    )
    left = number - sum(map(len, chosen))
    if len(means) > 1:
        pairs = torch.randint(len(means), (left // 2, 2), generator=generator).to(device)
        share = torch.rand(left // 2, 1, generator=generator, dtype=torch.float64).to(device)
        chosen.append(share * means[pairs[:, 0]] + (1 - share) * means[pairs[:, 1]])
        left -= left // 2
    noise = torch.randn(left, k, generator=generator, dtype=torch.float64).to(device)
    stretch = torch.exp(0.7 * torch.randn(left, 1, generator=generator, dtype=torch.float64)).to(
        device
    )
    return torch.cat([*chosen, noise * (stretch * length / max(k, 1) ** 0.5)])


def _row_means(condition: Condition) -> Tensor:
    """(≤ m, k) rows of ∇W as unknowns: over their entry of ∇b, or, without one, so that z is of
    size 1."""
    here = condition.here
    mixed = here.columns.T @ here.core
    if not here.has_bias:
        size = (mixed @ condition.K).square().mean(1).sqrt()
        heard = size > 1e-3 * size.max()
        return mixed[heard] / size[heard, None]
    b = mixed @ here.rows[:, -1]
    heard = b.abs() > 1e-3 * b.abs().max()
    means: Tensor = (mixed[heard] / b[heard, None] - condition.origin) @ condition.directions.T
    return means


def descend(condition: Condition, s: Tensor, budget: Budget = STARTS) -> Descent:
    """Every start, followed until no sample fits better, or as far as its misfit falls."""
    if condition.unknowns == 0:  # one sample, and a bias that determines its length
        s = s[:2]
    return follow(condition, s, budget, StoppingRule(condition.least_misfit**2, untried=UNTRIED))
