"""Do the peeled inputs explain every tensor, and would anything else? What stands between an answer and its claim.

The inputs go through the layers again, and each tensor's gradient is replayed: what it leaves of ∇W_l = δ_lᵀ x_l is all that
can hide anything. Two things could:

1. **Samples that look like one.** Two samples x ± d of one label send, besides what their mean sends, ½ (δ₊ − δ₋)ᵀ d. Its part
   outside the rows of X and outside the rows of δ no other answer of as many samples can take up: it is a direction more in ∇W_l.
   It is played for random d of a hundredth of x. Where it does not stand far above what is left, nobody can tell one from two.
2. **Another scale, temperature or smoothing.** Each is one more unknown beside X. With the Jacobian of all layers by all of them
   (`Dense`), what is left unexplained becomes an error of the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from unsum.equation.levenberg import Dense
from unsum.head import orthonormal_rows
from unsum.peel.blocks import left_product, residual_norm, right_product
from unsum.peel.chain import Step
from unsum.peel.dense import open_range

APART = 1e-2  # relative distance from their mean from which two samples that are taken for one make a claim false
_DRAWS = 16
_UNKNOWNS = 300  # up to which the Jacobian is formed
_SMALL = 1 << 20  # entries up to which singular values cost nothing
_SPARE = 4  # equations left over without which a fit proves nothing


@dataclass(frozen=True)
class PlayedBatch:
    """What is replayed: inputs X (B, …) of `steps[0]`, targets Y (B, C), and δ_L = factor · (P − Y)."""

    steps: list[Step]
    X: Tensor
    Y: Tensor
    factor: float
    shapes: list[tuple[int, ...]]  # of every step's input


@dataclass(frozen=True)
class Pass:
    """Every layer's input x, ∂loss/∂z, and the slope of its activation (1 for the head)."""

    x: list[Tensor]
    delta: list[Tensor]
    slope: list[Tensor]


@dataclass(frozen=True)
class Replayed:
    """`left[l]` is the largest singular value of what layer l's weight gradient leaves, as one more sample would add it;
    `unexplained` is the largest share of any tensor."""

    batch: PlayedBatch
    at: Pass
    left: list[float]
    unexplained: float

    def contributions(self) -> Tensor:
        """(B,) the least that a sample sends to any layer, in units of what is left there."""
        sent = [
            _gradients(step, x, delta).flatten(1).norm(dim=1) / left
            if step.is_conv
            else x.flatten(1).norm(dim=1) * delta.norm(dim=1) / left
            for step, x, delta, left in zip(self.batch.steps, self.at.x, self.at.delta, self.left, strict=True)
        ]
        return torch.stack(sent).amin(0)

    def twins(self, seed: int) -> Tensor:
        """(B,) how far two samples, a hundredth from their mean, would stand above what is left: in the layer that shows
        them best, for the direction of several that shows them least."""
        generator = torch.Generator().manual_seed(seed + 4)
        coarse = torch.promote_types(
            self.batch.steps[0].W.dtype, torch.float32
        )  # enough for a difference of a hundredth
        X, least = self.batch.X.to(coarse), None
        known = [self._known(i, coarse) for i in range(len(self.left))]
        for _ in range(_DRAWS):
            u = torch.randn(X.shape, generator=generator, dtype=torch.float64).to(X).flatten(1)
            d = (APART * X.flatten(1).norm(dim=1, keepdim=True) / u.norm(dim=1, keepdim=True) * u).view_as(X)
            plus, minus = _played(self.batch, X + d), _played(self.batch, X - d)
            shown = torch.stack([self._shown(i, known[i], plus, minus) for i in range(len(self.left))]).amax(0)
            least = shown if least is None else torch.minimum(least, shown)
        assert least is not None
        return least

    def _known(self, i: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Orthonormal rows of what layer i read, with the constant that its bias reads, and of its δ."""
        rows = _extended(self.batch.steps[i], self.at.x[i])
        return orthonormal_rows(rows).to(dtype), orthonormal_rows(self.at.delta[i].flatten(1)).to(dtype)

    def _shown(self, i: int, known: tuple[Tensor, Tensor], plus: Pass, minus: Pass) -> Tensor:
        step = self.batch.steps[i]
        if step.is_conv:  # shares its weights between places: no rank to count
            return torch.zeros_like(plus.x[i].flatten(1)[:, 0])
        read = (_extended(step, plus.x[i]) - _extended(step, minus.x[i])) / 2
        sent = (plus.delta[i] - minus.delta[i]) / 2
        second: Tensor = _outside(read, known[0]).norm(dim=1) * _outside(sent, known[1]).norm(dim=1)
        return second / self.left[i]

    def errors(self, *, temperature_open: bool) -> Tensor:
        """(B,) relative errors of X that what is left allows, with scale, smoothing and, where open, temperature unknown.

        Infinite where the Jacobian is too large to be formed, or has hardly more rows than columns.
        """
        B, X = len(self.batch.X), self.batch.X.flatten(1)
        A = orthonormal_rows(X)
        unknowns = B * len(A) + 2 + temperature_open
        nothing = torch.full((B,), torch.inf, dtype=torch.float64, device=X.device)
        if unknowns > _UNKNOWNS or any(step.is_conv for step in self.batch.steps):
            return nothing
        residual = _Unexplained(self, A, temperature_open)
        start = torch.cat([(X @ A.T).flatten(), X.new_zeros(2 + temperature_open)])
        J = Dense(residual, start).jacobian
        if len(J) < unknowns + _SPARE:
            return nothing
        scale = J.norm(dim=0).clamp_min(1e-300)
        _, s, V = torch.linalg.svd(J / scale, full_matrices=False)
        if not float(s[-1]) > 1e-13 * float(s[0]):
            return nothing
        deviations = ((V.T / s) / scale[:, None])[: B * len(A)].square().sum(1).view(B, -1)
        errors: Tensor = deviations.sum(1).sqrt() / X.norm(dim=1).clamp_min(1e-300)
        return errors


class _Unexplained:
    """What every layer's gradient leaves in the row space of its input, in units of what is left, for T with X = T A, the
    logarithm of the scale, the smoothing of the targets and the logarithm of a temperature."""

    def __init__(self, replay: Replayed, A: Tensor, temperature_open: bool) -> None:
        self.batch, self.A, self.open = replay.batch, A, temperature_open
        self.slopes, self.deltas = replay.at.slope, replay.at.delta
        self.bases = [A, *(orthonormal_rows(x) for x in replay.at.x[1:])]
        self.gradients = [
            right_product(step.grad_W, basis) for step, basis in zip(self.batch.steps, self.bases, strict=True)
        ]
        # As if all that is left lay in the row space.
        self.units = [left / len(g) ** 0.5 for left, g in zip(replay.left, self.gradients, strict=True)]
        self.K = right_product(self.batch.steps[0].W, A).T

    def __call__(self, unknowns: Tensor) -> Tensor:
        steps, size = self.batch.steps, len(self.batch.X) * len(self.A)
        T, others = unknowns[:size].view(-1, len(self.A)), unknowns[size:]
        x, z = [T], []
        for i, step in enumerate(steps):
            b = 0.0 if step.b is None else step.b.double()
            z.append((x[i] @ self.K if i == 0 else x[i] @ step.W.double().T) + b)
            x.append(z[i] * self.slopes[i] if step.activation.family == "relu" else step.activation.function(z[i]))
        tau = others[2].exp() if self.open else 1.0
        C = self.batch.Y.shape[1]
        Y = self.batch.Y * (1 - C * others[1]) + others[1]
        delta = self.batch.factor * others[0].exp() * ((x[-1] / tau).softmax(1) - Y) / tau
        parts = []
        for i in range(len(steps) - 1, -1, -1):
            read = x[i] if i == 0 else x[i] @ self.bases[i].T
            parts.append(((delta.T @ read - self.gradients[i]) / self.units[i]).flatten())
            grad_b = steps[i].grad_b
            if grad_b is not None:
                parts.append((delta.sum(0) - grad_b.double()) / self._bias_unit(i))
            if i:
                delta = (delta @ steps[i].W.double()) * _slope(steps[i - 1], z[i - 1], self.slopes[i - 1])
        return torch.cat(parts)

    def _bias_unit(self, i: int) -> float:
        grad_b = self.batch.steps[i].grad_b
        assert grad_b is not None
        share: float = self.units[i] * len(grad_b) ** 0.5 / max(float(self.gradients[i].norm()), 1e-300)
        unit: float = max(share * _bias_scale(self.deltas[i], grad_b.double()) / len(grad_b) ** 0.5, 1e-300)
        return unit


def replay(batch: PlayedBatch, errors: Tensor) -> Replayed:
    """The replay of X, known to the relative `errors` (B,): within these, ReLUs that are open are as the gradient says."""
    at = _played(batch, batch.X, errors)
    left, shares = [], []
    for step, x, delta in zip(batch.steps, at.x, at.delta, strict=True):
        size = max(float(step.grad_W.double().norm()), 1e-300)
        missing, largest = _missing(step, x, delta)
        floor = 0.5 * torch.finfo(step.grad_W.dtype).eps * size / min(step.grad_W.flatten(1).shape) ** 0.5
        left.append(max(largest, floor))
        shares.append(missing / size)
        if step.grad_b is not None:
            summed = delta.flatten(2).sum(2) if step.is_conv else delta
            grad_b = step.grad_b.double()
            shares.append(float((summed.sum(0) - grad_b).norm()) / max(_bias_scale(summed, grad_b), 1e-300))
    return Replayed(batch, at, left, max(shares))


def _bias_scale(delta: Tensor, grad_b: Tensor) -> float:
    """Against what a bias gradient's rounding counts: the samples' own, which may cancel in the sum."""
    return max(float(grad_b.norm()), float(delta.norm()))


def _played(batch: PlayedBatch, X: Tensor, errors: Tensor | None = None) -> Pass:
    """Forward and back, in X's precision. With `errors`, a ReLU's state within them is taken from its own layer's gradient."""
    steps = batch.steps
    x, z = [X], []
    for step in steps:
        x[-1] = x[-1] if step.is_conv else x[-1].flatten(1)
        z.append(_linear(step, x[-1]))
        x.append(step.activation.function(z[-1]))
    deltas = [batch.factor * (x.pop().softmax(1) - batch.Y.to(X))]
    slopes = [torch.ones_like(deltas[0])]
    for i in range(len(steps) - 2, -1, -1):
        passed = _passed_down(steps[i + 1], deltas[0], batch.shapes[i + 1]).view_as(z[i])
        slope = steps[i].activation.slope(z[i])
        if errors is not None and steps[i].activation.family == "relu" and not steps[i].is_conv:
            slope = _settled(steps[i], x[i], z[i], passed, slope, errors)
        slopes.insert(0, slope)
        deltas.insert(0, passed * slope)
    return Pass(x, deltas, slopes)


def _linear(step: Step, x: Tensor) -> Tensor:
    """z for x in x's precision; without a copy of a large matrix in it."""
    if x.dtype == torch.float64 and not step.is_conv:
        z = right_product(step.W, x).T
        return z if step.b is None else z + step.b.double()
    b = None if step.b is None else step.b.to(x)
    if step.is_conv:
        return functional.conv2d(x, step.W.to(x), b, **step.geometry)
    return functional.linear(x, step.W.to(x), b)


def _passed_down(step: Step, delta: Tensor, shape: tuple[int, ...]) -> Tensor:
    """∂loss/∂x of a layer, in δ's precision."""
    if step.is_conv:
        back: Tensor = conv2d_input(torch.Size((len(delta), *shape)), step.W.to(delta), delta, **step.geometry)
        return back
    return left_product(delta, step.W)[0] if delta.dtype == torch.float64 else delta @ step.W.to(delta)


def _settled(step: Step, x: Tensor, z: Tensor, passed: Tensor, slope: Tensor, errors: Tensor) -> Tensor:
    """Slopes with those turned, among ReLUs whose sign is open, that leave less of their unit's row of ∇W."""
    near = (z.abs() < open_range(z, errors)[1]).nonzero().tolist()
    slope = slope.clone()
    for i, unit in near:
        row = step.grad_W[unit].double()
        delta = passed[:, unit] * slope[:, unit]
        turned = delta.clone()
        turned[i] = passed[i, unit] * (1 - slope[i, unit])
        if float((row - turned @ x).norm()) < float((row - delta @ x).norm()):
            slope[i, unit] = 1 - slope[i, unit]
    return slope


def _missing(step: Step, x: Tensor, delta: Tensor) -> tuple[float, float]:
    """‖∇W − replayed‖ and its largest singular value; of large matrices the norm stands for both."""
    if not step.is_conv and step.grad_W.numel() > _SMALL:
        missing = residual_norm(step.grad_W, delta, x.flatten(1))
        return missing, missing
    replayed = conv2d_weight(x, step.W.shape, delta, **step.geometry) if step.is_conv else delta.T @ x.flatten(1)
    rest = (replayed - step.grad_W.double()).flatten(1)
    if not bool(rest.isfinite().all()):
        return torch.inf, torch.inf
    return float(rest.norm()), float(torch.linalg.matrix_norm(rest, 2))


def _gradients(step: Step, x: Tensor, delta: Tensor) -> Tensor:
    """(B, …) each sample's own gradient of a convolution."""
    return torch.stack(
        [conv2d_weight(x[i : i + 1], step.W.shape, delta[i : i + 1], **step.geometry) for i in range(len(x))]
    )


def _slope(step: Step, z: Tensor, fixed: Tensor) -> Tensor:
    """a′(z) as a function of z that can be differentiated; a ReLU's stays."""
    if step.activation.family == "relu":
        return fixed
    slope: Tensor = torch.func.grad(lambda t: step.activation.function(t).sum())(z)
    return slope


def _extended(step: Step, x: Tensor) -> Tensor:
    x = x.flatten(1)
    return x if step.grad_b is None else torch.cat([x, torch.ones_like(x[:, :1])], 1)


def _outside(rows: Tensor, basis: Tensor) -> Tensor:
    rest: Tensor = rows - (rows @ basis.T) @ basis
    return rest - (rest @ basis.T) @ basis  # twice: what is left may be tiny
