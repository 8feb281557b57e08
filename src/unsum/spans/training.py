"""What local training leaves behind, and what of it samples explain: each step's part in the change
of weights, the weights that every step met, and what rounding them leaves.

v ← μ v + η (g + λ w),  w ← w − v.  All of it is linear in the gradients g, so the change is a sum
over all steps' samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unsum.engine.found import FoundPoints, Rows
from unsum.local_training import LocalTraining
from unsum.network.chain import Step, backward, forward
from unsum.separate.local_steps.movement import Schedule
from unsum.update import Update

_PLACES = 8  # last places that sums of some hundred terms are off by
# local steps whose rounding is assumed where nobody says how many there are; it grows with their
# root
_USUAL = 16
_DEVIATION = 0.29  # of a rounded number, in units of the last place: 1/√12


@dataclass(frozen=True)
class Visited(Rows):
    """What one local step saw: inputs (R, n) of the first layer with their errors, labels, and how
    much each counts in −Δ."""

    roots: FoundPoints
    labels: Tensor
    weights: Tensor

    def passes(self, steps: list[Step]) -> tuple[list[Tensor], list[Tensor]]:
        """(what every layer reads, δ at what it writes, with the samples' weights) at the weights
        that the step met."""
        read, z = forward(steps, self.roots.points)
        Y = torch.nn.functional.one_hot(self.labels, z[-1].shape[1]).to(z[-1])
        return read, backward(steps, z, (z[-1].softmax(1) - Y) * self.weights[:, None])

    def contributions(self, steps: list[Step]) -> list[tuple[Tensor, Tensor]]:
        """(of every layer's weight, of its bias) what the samples put into −Δ, in float64."""
        return [(d.T @ a, d.sum(0)) for a, d in zip(*self.passes(steps), strict=True)]


@dataclass(frozen=True)
class MetWeights:
    """The dense layers as one local step meets them, and what a momentum carries over for each
    layer's weight and bias."""

    steps: list[Step]
    velocity: list[tuple[Tensor, Tensor]] | None = None

    def after(self, moved: list[tuple[Tensor, Tensor]], training: LocalTraining) -> MetWeights:
        """One step further, by `moved` = η g of every layer: v ← μ v + η (g + λ w), w ← w − v."""
        steps, velocity = [], []
        pull = (training.learning_rate or 0.0) * training.weight_decay
        for i, (step, (v_W, v_b)) in enumerate(zip(self.steps, moved, strict=True)):
            v_W = v_W + pull * step.W
            v_b = v_b if step.b is None else v_b + pull * step.b
            if self.velocity is not None:
                v_W = v_W + training.momentum * self.velocity[i][0]
                v_b = v_b + training.momentum * self.velocity[i][1]
            velocity.append((v_W, v_b))
            b = None if step.b is None else (step.b - v_b).to(step.b.dtype)
            steps.append(replace(step, W=(step.W - v_W).to(step.W.dtype), b=b))
        return MetWeights(steps, velocity if training.momentum else None)


@dataclass(frozen=True)
class Unrolled:
    """All steps that were found, the weights that each met, and the layers with what is left of
    −Δ."""

    left: list[Step]
    seen: list[Visited] = field(default_factory=list)
    met: list[MetWeights] = field(default_factory=list)
    even: bool = False  # the weights of all steps are as their number and the rate make them

    @property
    def visits(self) -> int:
        return sum(map(len, self.seen))

    @property
    def unexplained(self) -> float:
        """The largest share of any tensor of −Δ that is left, in units of what rounded weights
        leave."""
        sent = self.met[0].steps  # with all of −Δ
        rests = zip(self.left, sent, strict=True)
        return max(
            _norm(left) / max(rounded_weights(left, len(self.seen), change), 1e-300)
            for left, change in rests
        )


def less(step: Step, by_W: Tensor, by_b: Tensor) -> Step:
    return replace(
        step, grad_W=step.grad_W - by_W, grad_b=None if step.grad_b is None else step.grad_b - by_b
    )


def raw_change(steps: list[Step], update: Update, training: LocalTraining) -> list[Step]:
    """The layers with −Δ, less what weight decay took of the first weights, in the place of their
    gradients.

    The update holds −Δ / divisor − λ w. Where the number of steps is not known, the head tells what
    the decay took: the columns of every gradient at the logits sum to zero, so those of −Δ sum to
    that share of the columns of W.
    """
    divisor, decay = update.learning_rate or 1.0, training.weight_decay
    if decay == 0:
        return [_plus_decay(step, divisor, 0.0) for step in steps]
    sent = [_plus_decay(step, divisor, divisor * decay) for step in steps]
    if training.steps is not None:
        taken = 1 - float(Schedule.of(training, (1,)).kept[-1])
    else:
        sums, of_weights = sent[-1].grad_W.double().sum(0), sent[-1].W.double().sum(0)
        taken = float(sums @ of_weights / of_weights.square().sum().clamp_min(1e-300))
    return [_plus_decay(step, 1.0, -taken) for step in sent]


def _plus_decay(step: Step, factor: float, decay: float) -> Step:
    """factor · gradient + decay · weight in the place of the gradient."""
    grad_b = (
        step.grad_b
        if step.grad_b is None or step.b is None
        else factor * step.grad_b + decay * step.b
    )
    return replace(step, grad_W=factor * step.grad_W + decay * step.W, grad_b=grad_b)


def rounded_weights(step: Step, steps: int | None, change: Step | None = None) -> float:
    """The norm of what rounding leaves in a change of weights: every local step rounds each weight
    to its own last place.

    The client's gradients are rounded, too, which counts where the `change` is about as large as
    the weights.
    """
    parts = [step.W] if step.b is None else [step.W, step.b]
    places = [
        torch.finfo(part.dtype).eps * part.abs().log2().floor().exp2().double() for part in parts
    ]
    weights = (
        _DEVIATION
        * ((steps or _USUAL) * sum(float(place.square().sum()) for place in places)) ** 0.5
    )
    return (
        weights
        if change is None
        else math.hypot(weights, _PLACES * torch.finfo(step.W.dtype).eps * _norm(change))
    )


def rounded_entry(step: Step, steps: int | None) -> float:
    """The same as the deviation of an entry."""
    return rounded_weights(step, steps) / step.W.numel() ** 0.5


def _norm(step: Step) -> float:
    parts = [step.grad_W] if step.grad_b is None else [step.grad_W, step.grad_b]
    return (
        sum(float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in parts)
        ** 0.5
    )
