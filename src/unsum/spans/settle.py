"""What the forward spans leave open, settled by all that one sample must fulfill.

Samples with one pattern of ReLUs form a family: everything between them lies in both spans. Without
biases a sample's length, or its sign, is free. Of such a family only the sample itself, with its
label y and its weight α in the gradient, fulfills also

- δ_l ∈ column space of ∇W_l: what it sends back through both layers, which depends on y and on its
  logits;
- α aᵀ ∇W_l⁺ δ_l = 1: taken out with its weight, it lowers the rank (Wedderburn).

Every equation is counted in units of its noise. Points of the families are the starts; each is
followed for its likeliest labels.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.descend import ROUNDING, NonlinearProblem, Normal, descend
from unsum.engine.found import FoundPoints
from unsum.equation.noise import unit_of
from unsum.losses import Loss
from unsum.network.activations import Activation
from unsum.network.chain import Step
from unsum.running.deadline import out_of_time
from unsum.spans.basis import LayerSpan
from unsum.spans.roots import Condition
from unsum.spans.search import SLACK

# A start begins on its family, and has few directions to go. Chosen by: arbitrary budget.
_DESCENT = Budget(steps=25, damping=1e-2, patience=1, refusals=4, memory=1 << 24)
# [labels] that a start is tried with at most, the likeliest ones. Chosen by: arbitrary budget.
_LABELS = 3
# [of the likeliest label's distance from the spans] up to which another label is tried.
# Chosen by: arbitrary margin.
_WORTH = 5.0
# [classes] among which the labels are sought. Chosen by: arbitrary budget.
_CLASSES = 64
# [predicted relative error] from which a point is still one of many. Chosen by: arbitrary margin.
_ISOLATED = 1e-2
# [relative distance] of a weight from a multiple of the usual one. Chosen by: arbitrary margin.
_EVEN = 1e-2
_PINNED = 1e6  # [weight] of the equation that holds α at a value. Chosen by: arbitrary, large.


@dataclass(frozen=True)
class Part:
    """One kind of equation: values (S, R), their derivatives by the unknowns (S, k, R), and the
    size of their noise (S,)."""

    value: Tensor
    slope: Tensor
    noise: Tensor


@dataclass(frozen=True)
class Moved:
    """A quantity (S, m) of every start and its derivatives by the unknowns s (S, k, m)."""

    at: Tensor
    by: Tensor


@dataclass(frozen=True)
class SpanLayer:
    """One of the two layers in the coordinates of its spans, with their core ∇W⁺ (N, N)."""

    span: LayerSpan
    inverse: Tensor
    rounding: float  # unit of the client's numbers: p − y has it absolutely, however small it is

    @classmethod
    def of(cls, step: Step, span: LayerSpan) -> SpanLayer:
        return cls(span, torch.linalg.pinv(span.core), unit_of(step.grad_W))

    def forward(self, read: Moved) -> Part:
        """What was read lies in the row space."""
        V, a = self.span.rows, self.span.extended(read.at)
        outside = read.by - (read.by @ V[:, : read.by.shape[2]].T) @ V[:, : read.by.shape[2]]
        rest = a - (a @ V.T) @ V
        return Part(
            rest[:, : outside.shape[2]],
            outside,
            self.span.noise * ((a @ V.T) / self.span.values).norm(dim=1),
        )

    def backward(self, delta: Moved, sent: Tensor) -> Part:
        """What is sent lies in the column space; `sent` (S,) is the size of p − y."""
        U = self.span.columns
        inside = delta.at @ U.T
        own = self.rounding / sent * delta.at.norm(dim=1) / delta.at.shape[1] ** 0.5
        noise = self.span.noise * (inside / self.span.values).norm(dim=1) + own
        return Part(delta.at - inside @ U, delta.by - (delta.by @ U.T) @ U, noise)

    def weight(self, read: Moved, delta: Moved, sent: Tensor) -> Part:
        """aᵀ ∇W⁺ δ."""
        V, U = self.span.rows, self.span.columns
        a, d = self.span.extended(read.at) @ V.T, delta.at @ U.T
        left, right = a @ self.inverse, d @ self.inverse.T
        value = (a * right).sum(1)
        by = (
            (read.by @ V[:, : read.by.shape[2]].T) @ right[..., None]
            + (delta.by @ U.T) @ left[..., None]
        )[..., 0]
        noise = (
            self.span.noise * left.norm(dim=1) * right.norm(dim=1)
            + self.rounding / sent * value.abs()
        )
        return Part(value[:, None], by[..., None], noise)


class Sample:
    """All equations of single samples for unknowns u = (s, log α)."""

    def __init__(self, condition: Condition, steps: list[Step], loss: Loss) -> None:
        self.condition, self.loss = condition, loss
        here = condition.here
        # dx / ds
        self.turned = (condition.directions @ here.rows)[:, : here.rows.shape[1] - here.has_bias]
        self.activations = [step.activation for step in steps]
        self.W = [step.W.double() for step in steps[1:]]
        self.b = [None if step.b is None else step.b.double() for step in steps[1:]]
        self.second = SpanLayer.of(steps[1], condition.next)
        self.head_rows = steps[-1].grad_W.norm(dim=1)
        # A layer whose gradient has fewer directions than samples says nothing about a single one.
        complete = len(condition.here) >= len(condition.next)
        self.first = SpanLayer.of(steps[0], condition.here) if complete else None

    def passes(
        self, s: Tensor, Y: Tensor, *, by: bool = True
    ) -> tuple[list[Moved], list[Moved], Tensor]:
        """(what every layer reads, δ at what it writes, the size of p − y (S,)), forward and back;
        if not `by`, without derivatives."""
        K = self.condition.K
        z = [Moved(s @ K + self.condition.c, (K if by else K[:0]).expand(len(s), -1, -1))]
        read = [
            Moved(
                self.condition.inputs(s), self.turned[: len(K) if by else 0].expand(len(s), -1, -1)
            )
        ]
        for W, b, activation in zip(self.W, self.b, self.activations, strict=False):
            slope = activation.slope(z[-1].at)
            read.append(Moved(activation.function(z[-1].at), z[-1].by * slope[:, None]))
            above = read[-1].at @ W.T
            z.append(Moved(above if b is None else above + b, read[-1].by @ W.T))
        logits, moved = z[-1].at, z[-1].by
        k = moved.shape[1]
        curvature = self.loss.curvature(logits.repeat_interleave(k, 0), Y.repeat_interleave(k, 0))
        sent = Moved(
            self.loss.gradient(logits, Y), curvature.times(moved.flatten(0, 1)).view_as(moved)
        )
        passed = [sent]
        for W, below, activation in reversed(list(zip(self.W, z, self.activations, strict=False))):
            slope, bend = activation.slope(below.at), _bend(activation, below.at)
            back = passed[-1].at @ W
            passed.append(
                Moved(
                    back * slope,
                    (passed[-1].by @ W) * slope[:, None] + (back * bend)[:, None] * below.by,
                )
            )
        return read, passed[::-1], sent.at.norm(dim=1).clamp_min(1e-300)

    def equations(
        self, u: Tensor, Y: Tensor, pin: Pin, units: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(equations (S, R), their derivatives (S, R, k + 1), units (S, P) of their noise).

        Where the units are those of an earlier point, derivatives by s are left out.
        """
        s, alpha = u[:, :-1], u[:, -1].exp()[:, None]
        (x, read, *_), (delta, above, *_), size = self.passes(s, Y, by=units is None)
        parts, scaled = [self.second.forward(read)], [False]
        for layer, inputs, sent in ((self.second, read, above), (self.first, x, delta)):
            if layer is not None:
                parts += [layer.backward(sent, size), layer.weight(inputs, sent, size)]
                scaled += [False, True]
        noises = [
            part.noise * (alpha[:, 0] if weighs else 1)
            for part, weighs in zip(parts, scaled, strict=True)
        ]
        units = torch.stack(noises, 1).clamp_min(1e-300) if units is None else units
        rows, slopes = (
            [pin.strength * (u[:, -1:] - pin.value)],
            [
                torch.nn.functional.pad(
                    read.by.new_full((len(u), 1, 1), pin.strength), (read.by.shape[1], 0)
                )
            ],
        )
        for i, (part, weighs) in enumerate(zip(parts, scaled, strict=True)):
            unit = units[:, i : i + 1]
            rows.append((alpha * part.value - 1 if weighs else part.value) / unit)
            by = (alpha[..., None] * part.slope if weighs else part.slope).mT
            of_alpha = alpha * part.value if weighs else torch.zeros_like(part.value)
            slopes.append(torch.cat([by, of_alpha[..., None]], 2) / unit[..., None])
        return torch.cat(rows, 1), torch.cat(slopes, 1), units


@dataclass(frozen=True)
class Pin:
    """Holds log α at a value, or does not."""

    value: float
    strength: float


def _bend(activation: Activation, z: Tensor) -> Tensor:
    """a″(z)."""
    if activation.family == "relu":
        return torch.zeros_like(z)
    return torch.func.grad(lambda t: activation.slope(t).sum())(z)


def settle(
    condition: Condition,
    steps: list[Step],
    X: Tensor,
    loss: Loss,
    alpha: float,
    usual: float | None,
    *,
    pinned: bool,
) -> tuple[FoundPoints, Tensor]:
    """Samples (R) among points X (P, n) of families, and their weights (R,).

    The search for a weight begins at `alpha`, or holds it there; `usual` is what samples that are
    known already weigh.
    """
    sample, pin = Sample(condition, steps, loss), Pin(math.log(alpha), _PINNED if pinned else 0.0)
    u, Y = _starts(sample, X, alpha)
    family = _Family(sample, Y, pin)
    start, ended = time.thread_time(), []
    for rows in torch.arange(len(u), device=u.device).split(
        _DESCENT.at_once(family.entries, u.device.type)
    ):
        if time.thread_time() > start + _DESCENT.patient_seconds or out_of_time(
            "families of samples that look alike"
        ):
            break
        ended.append(_followed(family.take(rows), u[rows]))
    if not ended:
        return FoundPoints.none(steps[0].W), condition.K.new_zeros(0)
    u, left, errors, vague = (torch.cat(part) for part in zip(*ended, strict=True))
    inputs, weights = condition.inputs(u[:, :-1]), u[:, -1].exp()
    errors = errors / inputs.norm(dim=1).clamp_min(1e-300)
    sure = (left < SLACK) & (errors < _ISOLATED) & weights.isfinite() & (weights > 0)
    sure[sure.clone()] = _in_keeping(weights[sure], vague[sure], usual)
    kept = FoundPoints.of(inputs[sure], errors[sure], left[sure])
    return kept.distinct(), weights[sure][kept.grouped()[0]]


def _in_keeping(weights: Tensor, vague: Tensor, usual: float | None) -> Tensor:
    """Which weights are the usual one, once or several times, within `vague`, the deviations of
    their logarithms."""
    if len(weights) == 0:
        return weights > 0
    ratios = weights / (usual or weights[vague.argmin()])
    times = ratios.round().clamp_min(1)
    return (ratios / times).log().abs() < _EVEN + 5 * vague


def _starts(sample: Sample, X: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Every point with its likeliest labels: those whose δ lies closest to the column spaces."""
    condition = sample.condition
    s = condition.unknowns_of(X)
    lengths = [2.0**i for i in range(-6, 7)] if condition.lengths_open else [1.0]
    tries = [(length, y) for length in lengths for y in _labels(sample).to(s)]
    fits = [_fits(sample, length * s, y) for length, y in tries]
    outside, inverse = (torch.stack(one, 1) for one in zip(*fits, strict=True))  # (P, tries)
    best, likely = outside.topk(min(_LABELS, len(tries)), largest=False)
    worth = (best <= _WORTH * best[:, :1]).flatten()
    weights = inverse.gather(1, likely).reciprocal()
    weights = torch.where((weights > 0) & weights.isfinite(), weights, alpha).log()
    stretched = s[:, None] * s.new_tensor([length for length, _ in tries])[likely][..., None]
    u = torch.cat([stretched, weights[..., None]], 2)
    return u.flatten(0, 1)[worth], torch.stack([y for _, y in tries])[likely.flatten()][worth]


def _fits(sample: Sample, s: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(how far δ lies outside the column spaces (P,), 1/α (P,)) with the label y."""
    (_, read, *_), (delta, above, *_), size = sample.passes(s, y.expand(len(s), -1), by=False)
    outside = sample.second.backward(above, size).value.norm(dim=1) / above.at.norm(
        dim=1
    ).clamp_min(1e-300)
    if sample.first is not None:
        below = sample.first.backward(delta, size).value.norm(dim=1)
        outside = outside + below / delta.at.norm(dim=1).clamp_min(1e-300)
    return outside, sample.second.weight(read, above, size).value[:, 0]


def outside_columns(sample: Sample, s: Tensor) -> Tensor:
    """(S,) how far δ lies outside the column spaces, with the likeliest label."""
    return torch.stack([_fits(sample, s, y)[0] for y in _labels(sample).to(s)]).amin(0)


def _labels(sample: Sample) -> Tensor:
    """(L, C) targets that come into question: of many classes those whose rows of the head's
    gradient are largest."""
    C = len(sample.W[-1])
    if C == 1:
        return torch.tensor([[0.0], [1.0]])
    return torch.eye(C)[sample.head_rows.topk(min(C, _CLASSES)).indices.cpu()]


@dataclass(frozen=True)
class _Family(NonlinearProblem):
    """The equations of starts u (S, k + 1) with a label each. A step is judged in the units of the
    point that it leaves: larger noise would explain more."""

    sample: Sample
    Y: Tensor
    pin: Pin

    @property
    def entries(self) -> int:
        K = self.sample.condition.K
        return (len(K) + 1) * 6 * K.shape[1]

    def linearize(self, s: Tensor) -> Normal:
        r, J, units = self.sample.equations(s, self.Y, self.pin)

        def costs(moved: Tensor) -> Tensor:
            return self.sample.equations(moved, self.Y, self.pin, units)[0].square().sum(1)

        gradient, N = (J.mT @ r[..., None])[..., 0], J.mT @ J
        return Normal(r.square().sum(1), gradient, N, costs, ROUNDING)

    def take(self, rows: Tensor) -> _Family:
        return replace(self, Y=self.Y[rows])


def _followed(family: _Family, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(u, what is left in units of noise, deviations of s and of log α) where starts end."""
    u = descend(family, u, _DESCENT).s
    r, J, _ = family.sample.equations(u, family.Y, family.pin)
    left = r.square().mean(1).sqrt().nan_to_num(nan=torch.inf)
    sizes = J.norm(dim=1).clamp(1e-150, 1e150)
    # columns of one size: eigenvalues stay within k
    even = (J / sizes[:, None]).nan_to_num(posinf=0.0, neginf=0.0)
    values, vectors = torch.linalg.eigh(even.mT @ even)
    ways = vectors.square() / values.clamp_min(1e-300)[:, None]  # (S, k + 1, k + 1)
    deviations = ways.sum(2).sqrt() / sizes * left.clamp_min(1.0)[:, None]
    return u, left, deviations[:, :-1].norm(dim=1), deviations[:, -1]
