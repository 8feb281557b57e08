"""The walk down a chain of layers: the head's answer first, then every layer that can be undone, one after another."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.peel.chain import Chain, Step, find_chain
from unsum.peel.conv import passed_down, peel_conv
from unsum.peel.method import PEELERS, PRECISE, Peeled, PeeledLayer
from unsum.peel.mlp import Front, front_at_head, head_factor, peel_dense
from unsum.peel.refine import refine
from unsum.peel.replay import PlayedBatch, replay
from unsum.peel.shapes import input_shapes, picture_shape
from unsum.peel.vouch import vouch
from unsum.update import Update

_FINE = 10.0  # roundings of the gradient as a predicted error, below which rounds gain nothing


@PEELERS.register(
    "layers",
    summary="every sample's exact input, layer by layer, fully connected and convolutional (unsum)",
    needs="gradients of all layers; no pooling, no batch statistics, no second path",
)
def layers(model: nn.Module, update: Update, leak: Leak | None, *, shape: tuple[int, ...] | None, seed: int) -> Peeled:
    """Peel as far as the architecture allows; `leak` is the separation that this continues."""
    if leak is None:
        raise UnsumError("The peeler 'layers' continues a separation; give it the leak of unsum.separate.")
    if not bool(torch.isfinite(leak.features).all()) or leak.predicted_error == torch.inf:
        raise UnsumError("The separation found nothing, so there is nothing to peel; see leak.notes.")
    chain = find_chain(model, update, leak.features.device)
    shapes = input_shapes(chain, model, shape)
    front = front_at_head(leak, chain.steps[-1], update.reduction, seed)
    walk = Walk(chain, shapes, front, leak, leak.targets.to(front.x), update.reduction, seed)
    walk.through_dense()
    walk.through_convolutions()
    return walk.answer(shape)


@dataclass
class Walk:
    """Where the walk stands: `at` is the step whose input is `front.x`."""

    chain: Chain
    shapes: list[tuple[int, ...]]
    front: Front
    leak: Leak
    Y: Tensor  # the leak's targets, or what the rounds made of them
    reduction: str
    seed: int
    at: int = -1
    stop: str | None = None
    layers: list[PeeledLayer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.at = len(self.chain.steps) - 1
        self.stop = self.chain.stop

    def through_dense(self) -> None:
        """Every Linear below the head, then rounds where the answer is not as precise as the gradient already."""
        steps = self.chain.steps
        while self.at > 0 and not steps[self.at - 1].is_conv:
            self.front, layer, notes = peel_dense(self.front, steps[self.at], steps[self.at - 1], self.seed)
            self.at -= 1
            self.layers.append(layer)
            self.notes += notes
        rounding = torch.finfo(steps[self.at].grad_W.dtype).eps
        if self.layers and not (self.leak.exact and float(self.front.errors.max()) < _FINE * rounding):
            self._refine(steps[self.at :])

    def _refine(self, steps: list[Step]) -> None:
        refined = refine(steps, self.front.x, self.front.errors, self.leak, self.reduction, self.seed)
        if not float(refined.errors.max()) < max(PRECISE, float(self.front.errors.max())):
            return
        self.Y = refined.Y
        self.front = replace(self.front, x=refined.X, delta=refined.delta, errors=refined.errors)
        self.layers[-1] = replace(
            self.layers[-1], predicted_error=float(refined.errors.max()), residual=refined.residual
        )
        self.notes = [note for note in self.notes if "ambiguous" not in note]  # decided since, all layers together
        self.notes.append(
            f"{refined.rounds} rounds through all layers removed what errors had accumulated: every layer's gradient is "
            f"explained to {refined.residual:.0e}."
        )

    def through_convolutions(self) -> None:
        steps = self.chain.steps
        while self.at > 0:
            above, step = steps[self.at], steps[self.at - 1]
            if not step.is_conv:
                self.stop = f"the layer {step.name!r} (Linear) stands below a convolution"
                return
            if step.activation.family == "folded":
                self.stop = f"{step.activation.name} after the convolution {step.name!r} has two inputs for one output"
                return
            self._one_convolution(above, step)
            if self.layers[-1].deficiency and self.at > 0:
                self.stop = f"what {step.name!r} takes in is not determined, and with it nothing below"
                return

    def _one_convolution(self, above: Step, step: Step) -> None:
        B, shape = len(self.front.x), self.shapes[self.at - 1]
        outputs = (B, *_output_shape(step, shape))
        passed = passed_down(above, self.front.delta, self.shapes[self.at]).view(outputs)
        y = self.front.x.view(outputs)
        x, delta, errors, layer = peel_conv(step, y, passed, self.front.errors, shape, self.seed)
        self.front = replace(self.front, x=x, delta=delta, errors=errors)
        self.at -= 1
        self.layers.append(layer)
        if layer.deficiency:
            self.notes.append(
                f"The layer {step.name!r} does not determine its input: {layer.equations} equations for {layer.unknowns} "
                f"unknowns of {B} samples, about {layer.deficiency} of them free; the input of smallest norm is returned."
            )

    def answer(self, shape: tuple[int, ...] | None) -> Peeled:
        complete = self.at == 0 and self.stop is None
        x = self.front.x
        if self.stop is not None:
            self.notes.append(self._stopped())
        factor = head_factor(self.leak, self.reduction)
        batch = PlayedBatch(self.chain.steps[self.at :], x, self.Y, factor, self.shapes[self.at :])
        vouched = vouch(replay(batch, self.front.errors), self.front.errors, self.leak, self.seed)
        self.notes += vouched.notes
        if complete and not self.chain.steps[0].is_conv:
            picture, notes = picture_shape(self.chain.steps[0], self.chain.flattens, shape)
            x, self.notes = x.view(len(x), *picture), [*self.notes, *notes]
        elif complete and shape is None:
            size = "×".join(map(str, self.shapes[0]))
            self.notes.append(f"Inputs were taken for {size}, the square size that fits the layers.")
        return Peeled("layers", x, self.front.errors, vouched.exact, complete, self.layers, self.notes)

    def _stopped(self) -> str:
        where = self.chain.steps[self.at].name
        done = f"the input of {where!r}" if self.layers else f"the features before {where!r}"
        return f"Peeling ended at {done}: {self.stop}."


def _output_shape(step: Step, shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        outputs: Tensor = torch.nn.functional.conv2d(torch.zeros(1, *shape).to(step.W), step.W, **step.geometry)
    return tuple(outputs.shape[1:])
