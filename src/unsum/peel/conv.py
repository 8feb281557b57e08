"""One convolution: every sample's input out of known outputs and the batch's summed weight
gradient.

For z = W ∗ x + b two kinds of equations are linear in the inputs x of the whole batch:

    W ∗ x_i = z_i − b            for every sample i, wherever z is known (all of it for one-to-one
                                 activations, z > 0 for ReLU)
    Σ_i corr(δ_i, x_i) = ∇W      once for the batch; corr is the correlation that gives a
                                 convolution's weight gradient.

Where a slope is small, z is known the less: an equation counts with the slope of its activation,
relative to the steepest. Padding adds no unknowns: zeros outside the picture are part of both maps.
R-GAP is the case of one sample. With B samples the second kind counts once, so that a layer may
determine one input but not sixteen. Whether it does is asked before solving: first by counting,
then by a rehearsal. A random input v is put in, its equations are disturbed by the errors that z
and δ are expected to have, and solved: what comes back instead of v shows what noise does and what
nothing determines (for a random v, the lost share of its energy is the share of lost dimensions).

Conjugate gradients on convolutions and transposed convolutions start from zero, so they end at the
smallest of all inputs that fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from unsum.engine.conjugate import least_squares
from unsum.network.activations import Activation
from unsum.network.chain import Shape, Step
from unsum.peel.dense import open_range
from unsum.peel.method import PeeledLayer
from unsum.running.deadline import out_of_time

_ITERATIONS = 2000  # [iterations] of conjugate gradients. Chosen by: arbitrary budget.
_TOLERANCE = 1e-11  # [of the right side]. Chosen by: near what float64 resolves.
_FAINT = 1e-4  # weight below which an output says nothing (a saturated sigmoid)
_SAFETY = 2.0  # one rehearsal with random noise against the errors that the client has
_LOST = 1e-2  # share of the rehearsal's energy that speaks of lost dimensions rather than of noise


@dataclass(frozen=True)
class ConvSystem:
    """The equations of one layer for a batch: `known` (B, …) weights the outputs, 0 where z is
    unknown."""

    step: Step
    delta: Tensor  # (B, out, h', w')
    known: Tensor  # (B, out, h', w') between 0 and 1
    shape: torch.Size  # (B, in, h, w)
    weight_z: float
    weight_g: float

    @classmethod
    def of(
        cls, step: Step, delta: Tensor, z: Tensor, known: Tensor, shape: torch.Size
    ) -> ConvSystem:
        """Both kinds of equation are made relative to the size of their right side."""
        size_z = float((z * known).norm()) / max(float((known > 0).sum()), 1.0) ** 0.5
        size_g = float(step.grad_W.double().norm()) / step.grad_W.numel() ** 0.5
        return cls(step, delta, known, shape, 1 / max(size_z, 1e-300), 1 / max(size_g, 1e-300))

    @property
    def unknowns(self) -> int:
        return self.shape.numel()

    @property
    def equations(self) -> int:
        return int((self.known > _FAINT).sum()) + self.step.grad_W.numel()

    def apply(self, x: Tensor) -> Tensor:
        x = x.view(self.shape)
        W, geometry = self.step.W.double(), self.step.geometry
        outputs = torch.nn.functional.conv2d(x, W, None, **geometry) * self.known
        gradient = conv2d_weight(x, W.shape, self.delta, **geometry)
        return torch.cat([self.weight_z * outputs.flatten(), self.weight_g * gradient.flatten()])

    def transpose(self, r: Tensor) -> Tensor:
        W, geometry, split = self.step.W.double(), self.step.geometry, self.delta.numel()
        outputs = self.weight_z * r[:split].view(self.delta.shape) * self.known
        gradient = self.weight_g * r[split:].view(W.shape)
        back: Tensor = conv2d_input(self.shape, W, outputs, **geometry)
        # Σ_i ⟨corr(δ_i, x_i), V⟩ = Σ_i ⟨δ_i, V ∗ x_i⟩, so its transpose carries δ back through V as
        # if V were the weights.
        both: Tensor = back + conv2d_input(self.shape, gradient, self.delta, **geometry)
        return both.flatten()

    def right_side(self, z: Tensor) -> Tensor:
        b = 0.0 if self.step.b is None else self.step.b.double()[:, None, None]
        outputs = (z - b) * self.known
        return torch.cat(
            [self.weight_z * outputs.flatten(), self.weight_g * self.step.grad_W.double().flatten()]
        )

    def solve(self, right: Tensor) -> tuple[Tensor, float]:
        """x (B, in, h, w), and the relative residual."""
        over = partial(out_of_time, "further steps of peeling")
        normal, limits = self.transpose(right), (_TOLERANCE, _ITERATIONS)
        x, _ = least_squares(self.apply, self.transpose, normal, *limits, over=over)
        residual = float((self.apply(x) - right).norm() / right.norm().clamp_min(1e-300))
        return x.view(self.shape), residual


@dataclass(frozen=True)
class Rehearsal:
    """What the equations can be expected to give: relative errors (B,), and dimensions that nothing
    determines."""

    errors: Tensor
    deficiency: int


def rehearse(system: ConvSystem, noise: float, seed: int) -> Rehearsal:
    """Solve for a random input from equations disturbed by the relative `noise`."""
    missing = system.unknowns - system.equations
    if missing > 0:
        return Rehearsal(torch.full((system.shape[0],), torch.inf).to(system.delta), missing)
    generator = torch.Generator().manual_seed(seed + 3)
    v = torch.randn(system.shape, generator=generator, dtype=torch.float64).to(system.delta)
    right = system.apply(v)
    disturbance = torch.randn(right.shape, generator=generator, dtype=torch.float64).to(right)
    split = system.delta.numel()
    for part in (slice(0, split), slice(split, None)):
        size = float(right[part].norm()) / max(float((right[part] != 0).sum()), 1.0) ** 0.5
        right[part] += noise * size * disturbance[part] * (right[part] != 0)
    found, _ = system.solve(right)
    errors = (found - v).flatten(1).norm(dim=1) / v.flatten(1).norm(dim=1)
    if float(errors.max()) < _LOST:
        return Rehearsal(errors, 0)
    # is it noise, or are there directions that the equations do not see?
    clean, _ = system.solve(system.apply(v))
    share = float((clean - v).square().sum() / v.square().sum())
    return Rehearsal(errors, round(share * system.unknowns))


def known_outputs(
    activation: Activation, y: Tensor, errors: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """z, its weights as equations, and the slopes a′(z), from y = a(z) known to relative `errors`
    (B,)."""
    if activation.family == "relu":
        cut = open_range(y.flatten(1), errors)[1].view(-1, *[1] * (y.ndim - 1))
        on = (y > cut).to(y)
        return y, on, on
    z = activation.branches(y)[0]
    slope = activation.slope(z)
    return z, slope / slope.max().clamp_min(1e-300), slope


def peel_conv(
    step: Step, y: Tensor, passed: Tensor, errors: Tensor, shape: Shape, seed: int
) -> tuple[Tensor, Tensor, Tensor, PeeledLayer]:
    """x (B, in, h, w), δ of this layer, predicted errors (B,) and the layer's report; `passed` is
    ∂loss/∂y."""
    z, known, slope = known_outputs(step.activation, y, errors)
    delta = passed * slope
    system = ConvSystem.of(step, delta, z, known, torch.Size((len(y), *shape)))
    noise = max(float(errors.max()), 4 * torch.finfo(step.grad_W.dtype).eps)
    rehearsal = rehearse(system, min(noise, 1.0), seed)
    x, residual = system.solve(system.right_side(z))
    if rehearsal.deficiency:
        predicted = torch.full_like(errors, torch.inf)
    else:
        predicted = _SAFETY * rehearsal.errors * max(1.0, residual / noise)
    layer = PeeledLayer(
        step.name,
        float(predicted.max()),
        residual,
        system.unknowns,
        system.equations,
        rehearsal.deficiency,
    )
    return x, delta, predicted, layer
