"""Whether the peeled inputs explain every tensor, and whether anything else would.

The inputs are sent through the layers again. What they leave of each ∇W_l = δ_lᵀ x_l is all that
can hide

1. samples that look like one (`engine.twins`), or
2. another scale, temperature or smoothing. Each is one more unknown beside X. With the Jacobian of
   all layers by all of them (`Dense`), the residual becomes an error of the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from unsum.certify.claim import FALSE_ERROR
from unsum.engine.replay import Replay, tolerance
from unsum.engine.twins import Passed, SentLayers
from unsum.equation.levenberg import SMALL as _UNKNOWNS
from unsum.equation.levenberg import Dense
from unsum.head import orthonormal_rows
from unsum.losses import CrossEntropy, Loss
from unsum.network.chain import Shape, Step, forward
from unsum.network.products import residual_norm, right_product
from unsum.peel.dense import SMALL, SPARE, open_range
from unsum.peel.refine import Rounds

DRAWS = 16  # [directions] in which two samples are set apart. Chosen by: arbitrary budget.


@dataclass(frozen=True)
class PlayedBatch:
    """What is replayed: inputs X (B, …) of `steps[0]`, targets Y (B, C), and δ_L = factor · G, with
    G = P − Y by default.

    `factor` may differ from sample to sample, (B, 1).
    """

    steps: list[Step]
    X: Tensor
    Y: Tensor
    factor: float | Tensor
    shapes: list[Shape]  # of every step's input
    loss: Loss = field(default_factory=CrossEntropy)


@dataclass(frozen=True)
class Pass:
    """Every layer's input x, ∂loss/∂z, and the slope of its activation (1 for the head)."""

    x: list[Tensor]
    delta: list[Tensor]
    slope: list[Tensor]


@dataclass(frozen=True)
class Replayed:
    """`left[l]` is the largest singular value of what layer l's weight gradient leaves, as one more
    sample would add it; `replay` has the norms of all tensors."""

    batch: PlayedBatch
    at: Pass
    left: list[float]
    replay: Replay

    def contributions(self) -> Tensor:
        """(B,) the least that a sample sends to any layer, in units of what is left there."""
        sent = [
            _gradients(step, x, delta).flatten(1).norm(dim=1) / left
            if step.is_conv
            else x.flatten(1).norm(dim=1) * delta.norm(dim=1) / left
            for step, x, delta, left in zip(
                self.batch.steps, self.at.x, self.at.delta, self.left, strict=True
            )
        ]
        return torch.stack(sent).amin(0)

    def twins(self, seed: int) -> Tensor:
        """(B,) how far two samples, a hundredth from their mean, would stand above what is left: in
        the layer that shows them best, for the direction of several that shows them least."""
        coarse = torch.promote_types(self.batch.steps[0].W.dtype, torch.float32)
        at, X = self._dense(self.at), self.batch.X.to(coarse)
        left = {name: self.left[int(name)] for name in at}
        sent = SentLayers(X, at, left, lambda X: self._dense(_played(self.batch, X)))
        return sent.twins(FALSE_ERROR, DRAWS, seed + 4)

    def _dense(self, at: Pass) -> dict[str, Passed]:
        """Number of a dense layer → what it read, with the constant of its bias, and its δ.

        Convolutions share weights between places, and are left out.
        """
        return {
            str(i): Passed(_extended(step, at.x[i])[:, None], at.delta[i].flatten(1)[:, None])
            for i, step in enumerate(self.batch.steps)
            if not step.is_conv
        }

    def errors(self, *, temperature_open: bool) -> Tensor:
        """(B,) relative errors of X that what is left allows, with scale, smoothing and, where
        open, temperature unknown.

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
        if len(J) < unknowns + SPARE:
            return nothing
        scale = J.norm(dim=0).clamp_min(1e-300)
        _, s, V = torch.linalg.svd(J / scale, full_matrices=False)
        if not float(s[-1]) > 1e-13 * float(s[0]):
            return nothing
        deviations = ((V.T / s) / scale[:, None])[: B * len(A)].square().sum(1).view(B, -1)
        return deviations.sum(1).sqrt() / X.norm(dim=1).clamp_min(1e-300)


class _Unexplained:
    """What every layer's gradient leaves in the row space of its input, in units of what is left,
    for T with X = T A, the logarithm of the scale, the smoothing of the targets and the logarithm
    of a temperature."""

    def __init__(self, replay: Replayed, A: Tensor, temperature_open: bool) -> None:
        self.batch, self.size, self.open, self.deltas = (
            replay.batch,
            len(A),
            temperature_open,
            replay.at.delta,
        )
        steps = self.batch.steps
        # samples of one weight each; others are vouched for elsewhere
        assert isinstance(self.batch.factor, float)
        self.rounds = Rounds(steps, A, self.batch.Y, self.batch.factor)
        states = zip(steps[:-1], replay.at.slope[:-1], strict=True)
        self.rounds.masks = [
            slope if step.activation.family == "relu" else None for step, slope in states
        ]
        self.bases = [orthonormal_rows(x) for x in replay.at.x[1:]]
        inner = zip(steps[1:], self.bases, strict=True)
        self.gradients = [
            self.rounds.U,
            *(right_product(step.grad_W, basis) for step, basis in inner),
        ]
        # As if all that is left lay in the row space.
        self.units = [
            left / len(g) ** 0.5 for left, g in zip(replay.left, self.gradients, strict=True)
        ]

    def __call__(self, unknowns: Tensor) -> Tensor:
        size = len(self.batch.X) * self.size
        T, others = unknowns[:size].view(-1, self.size), unknowns[size:]
        z, x = self.rounds.outputs(T)
        read = [T, *(inner @ basis.T for inner, basis in zip(x, self.bases, strict=True))]
        tau = others[2].exp() if self.open else 1.0
        C = self.batch.Y.shape[1]
        Y = self.batch.Y * (1 - C * others[1]) + others[1]
        head = self.batch.factor * others[0].exp() * ((z[-1] / tau).softmax(1) - Y) / tau
        parts = []
        for i, delta in enumerate(self.rounds.passed_down(head, z, None)):
            parts.append(((delta.T @ read[i] - self.gradients[i]) / self.units[i]).flatten())
            grad_b = self.batch.steps[i].grad_b
            if grad_b is not None:
                share = self.units[i] / max(float(self.gradients[i].norm()), 1e-300)
                unit = max(share * _bias_scale(self.deltas[i], grad_b.double()), 1e-300)
                parts.append((delta.sum(0) - grad_b.double()) / unit)
        return torch.cat(parts)


def replay(batch: PlayedBatch, errors: Tensor) -> Replayed:
    """The replay of X, known to the relative `errors` (B,): within these, ReLUs that are open are
    as the gradient says."""
    at = _played(batch, batch.X, errors)
    left: list[float] = []
    rows: list[tuple[float, float, float]] = []  # of each tensor: sent, left, and its size
    names: list[str] = []
    for step, x, delta in zip(batch.steps, at.x, at.delta, strict=True):
        size = float(step.grad_W.double().norm())
        missing, largest = _missing(step, x, delta)
        floor = (
            0.5
            * torch.finfo(step.grad_W.dtype).eps
            * size
            / min(step.grad_W.flatten(1).shape) ** 0.5
        )
        left.append(max(largest, floor, 1e-300))
        names.append(f"{step.name}.weight")
        rows.append((size, missing, size))
        if step.grad_b is not None:
            summed = delta.flatten(2).sum(2) if step.is_conv else delta
            grad_b = step.grad_b.double()
            rest = float((summed.sum(0) - grad_b).norm())
            names.append(f"{step.name}.bias")
            rows.append((float(grad_b.norm()), rest, _bias_scale(summed, grad_b)))
    sent, residuals, sizes = torch.tensor(rows, dtype=torch.float64).T
    explained = tolerance(*(step.grad_W.dtype for step in batch.steps)) * sizes
    return Replayed(batch, at, left, Replay(tuple(names), sent, residuals, explained, sizes=sizes))


def _bias_scale(delta: Tensor, grad_b: Tensor) -> float:
    """Against what a bias gradient's rounding counts: the samples' own, which may cancel in the
    sum."""
    return max(float(grad_b.norm()), float(delta.norm()))


def _played(batch: PlayedBatch, X: Tensor, errors: Tensor | None = None) -> Pass:
    """Forward and back, in X's precision. With `errors`, a ReLU's state within them is taken from
    its own layer's gradient."""
    steps = batch.steps
    x, z = forward(steps, X)
    deltas = [torch.as_tensor(batch.factor).to(X) * batch.loss.gradient(z[-1], batch.Y.to(X))]
    slopes = [torch.ones_like(deltas[0])]
    for i in range(len(steps) - 2, -1, -1):
        passed = steps[i + 1].passed_down(deltas[0], batch.shapes[i + 1]).view_as(z[i])
        slope = steps[i].activation.slope(z[i])
        if errors is not None and steps[i].activation.family == "relu" and not steps[i].is_conv:
            slope = _settled(steps[i], x[i], z[i], passed, slope, errors)
        slopes.insert(0, slope)
        deltas.insert(0, passed * slope)
    return Pass(x, deltas, slopes)


def _settled(
    step: Step, x: Tensor, z: Tensor, passed: Tensor, slope: Tensor, errors: Tensor
) -> Tensor:
    """Slopes with those turned, among ReLUs whose sign is open, that leave less of their unit's row
    of ∇W."""
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
    """‖∇W − replayed‖ and its largest singular value; of large matrices the norm stands for
    both."""
    if not step.is_conv and step.grad_W.numel() > SMALL:
        missing = residual_norm(step.grad_W, delta, x.flatten(1))
        return missing, missing
    replayed = (
        conv2d_weight(x, step.W.shape, delta, **step.geometry)
        if step.is_conv
        else delta.T @ x.flatten(1)
    )
    rest = (replayed - step.grad_W.double()).flatten(1)
    if not bool(rest.isfinite().all()):
        return torch.inf, torch.inf
    square = rest @ rest.T if len(rest) < rest.shape[1] else rest.T @ rest
    return float(rest.norm()), float(torch.linalg.eigvalsh(square)[-1].clamp_min(0).sqrt())


def _gradients(step: Step, x: Tensor, delta: Tensor) -> Tensor:
    """(B, …) each sample's own gradient of a convolution."""
    return torch.stack(
        [
            conv2d_weight(x[i : i + 1], step.W.shape, delta[i : i + 1], **step.geometry)
            for i in range(len(x))
        ]
    )


def _extended(step: Step, x: Tensor) -> Tensor:
    x = x.flatten(1)
    return x if step.grad_b is None else torch.cat([x, torch.ones_like(x[:, :1])], 1)
