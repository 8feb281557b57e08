"""The walk down a chain of layers: the head's answer first, then every layer that can be undone,
one after another.

Which of the inputs may be called exact `vouch` says: their replay is laid before `certify.claim`,
with every reason for doubt.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from unsum.certify.claim import grant_each
from unsum.certify.doubts.replay import TRACE, doubt_unexplained
from unsum.certify.question import name_some
from unsum.engine.twins import FAR
from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.network.chain import Chain, Shape, Step, find_chain
from unsum.network.shapes import input_shapes, picture_shape
from unsum.notes import Code, without
from unsum.peel.conv import peel_conv
from unsum.peel.dense import Front, front_at_head, head_factor, peel_dense
from unsum.peel.method import (
    MARGIN,
    PEELERS,
    PRECISE,
    Peeled,
    PeeledLayer,
    check_leak,
)
from unsum.peel.refine import refine
from unsum.peel.replay import PlayedBatch, Replayed, replay
from unsum.update import Update

_FINE = 10.0  # roundings of the gradient as a predicted error, below which rounds gain nothing
_HARD = 1e-9  # distance from a hard label that rounding leaves


@PEELERS.register(
    "layers",
    summary="every sample's exact input, layer by layer, fully connected and convolutional (unsum)",
    needs="gradients of all layers; no pooling, no batch statistics, no second path",
)
def layers(
    model: nn.Module, update: Update, leak: Leak | None, *, shape: Shape | None, seed: int
) -> Peeled:
    """Peel as far as the architecture allows; `leak` is the separation that this continues."""
    if leak is None:
        raise UnsumError(
            "The peeler 'layers' continues a separation; give it the leak of unsum.separate."
        )
    check_leak(model, leak)
    if not bool(torch.isfinite(leak.features).all()) or leak.estimate == torch.inf:
        raise UnsumError(
            "The separation found nothing, so there is nothing to peel; see leak.notes."
        )
    chain = find_chain(model, update, leak.features.device)
    shapes = input_shapes(chain, model, shape)
    front = front_at_head(leak, chain.steps[-1], update.reduction, seed)
    Y, top = leak.targets.to(front.x), len(chain.steps) - 1
    walk = Walk(chain, shapes, front, leak, Y, update.reduction, seed, top, chain.stop)
    walk.through_dense()
    walk.through_convolutions()
    return walk.answer(shape)


@dataclass
class Walk:
    """Where the walk stands: `at` is the step whose input is `front.x`."""

    chain: Chain
    shapes: list[Shape]
    front: Front
    leak: Leak
    Y: Tensor  # the leak's targets, or what the rounds made of them
    reduction: str
    seed: int
    at: int
    stop: str | None
    layers: list[PeeledLayer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def through_dense(self) -> None:
        """Every Linear below the head, then rounds where the answer is not as precise as the
        gradient already."""
        steps = self.chain.steps
        while self.at > 0 and not steps[self.at - 1].is_conv:
            self.front, layer, notes = peel_dense(
                self.front, steps[self.at], steps[self.at - 1], self.seed
            )
            self.at -= 1
            self.layers.append(layer)
            self.notes += notes
        rounding = torch.finfo(steps[self.at].grad_W.dtype).eps
        if self.layers and not (
            self.leak.exact and float(self.front.errors.max()) < _FINE * rounding
        ):
            self._refine(steps[self.at :])

    def _refine(self, steps: list[Step]) -> None:
        refined = refine(
            steps, self.front.x, self.front.errors, self.leak, self.reduction, self.seed
        )
        if not float(refined.errors.max()) < max(PRECISE, float(self.front.errors.max())):
            return
        self.Y = refined.Y
        self.front = replace(self.front, x=refined.X, delta=refined.delta, errors=refined.errors)
        self.layers[-1] = replace(
            self.layers[-1], predicted_error=float(refined.errors.max()), residual=refined.residual
        )
        self.notes = without(self.notes, Code.OPEN_SLOPES)  # all layers together have decided them
        self.notes.append(
            f"{refined.rounds} rounds through all layers removed what errors had accumulated: "
            f"every layer's gradient is explained to {refined.residual:.0e}."
        )

    def through_convolutions(self) -> None:
        steps = self.chain.steps
        while self.at > 0:
            above, step = steps[self.at], steps[self.at - 1]
            if not step.is_conv:
                self.stop = f"the layer {step.name!r} (Linear) stands below a convolution"
                return
            if step.activation.family == "folded":
                self.stop = (
                    f"{step.activation.name} after the convolution {step.name!r} has two inputs "
                    "for one output"
                )
                return
            self._one_convolution(above, step)
            if self.layers[-1].deficiency and self.at > 0:
                self.stop = (
                    f"what {step.name!r} takes in is not determined, and with it nothing below"
                )
                return

    def _one_convolution(self, above: Step, step: Step) -> None:
        B, shape = len(self.front.x), self.shapes[self.at - 1]
        outputs = (B, *step.output_shape(shape))
        passed = above.passed_down(self.front.delta, self.shapes[self.at]).view(outputs)
        y = self.front.x.view(outputs)
        x, delta, errors, layer = peel_conv(step, y, passed, self.front.errors, shape, self.seed)
        self.front = replace(self.front, x=x, delta=delta, errors=errors)
        self.at -= 1
        self.layers.append(layer)
        if layer.deficiency:
            self.notes.append(
                f"The layer {step.name!r} does not determine its input: {layer.equations} "
                f"equations for {layer.unknowns} unknowns of {B} samples, about {layer.deficiency} "
                "of them free; the input of smallest norm is returned."
            )

    def answer(self, shape: Shape | None) -> Peeled:
        complete = self.at == 0 and self.stop is None
        x = self.front.x
        if self.stop is not None:
            where = self.chain.steps[self.at].name
            done = f"the input of {where!r}" if self.layers else f"the features before {where!r}"
            self.notes.append(f"Peeling ended at {done}: {self.stop}.")
        factor = head_factor(self.leak, self.reduction)
        batch = PlayedBatch(self.chain.steps[self.at :], x, self.Y, factor, self.shapes[self.at :])
        exact, doubts = vouch(
            replay(batch, self.front.errors), self.front.errors, self.leak, self.seed
        )
        self.notes += doubts
        if complete and not self.chain.steps[0].is_conv:
            picture, notes = picture_shape(self.chain.steps[0], self.chain.flattens, shape)
            x, self.notes = x.view(len(x), *picture), [*self.notes, *notes]
        elif complete and shape is None:
            size = "×".join(map(str, self.shapes[0]))
            self.notes.append(
                f"Inputs were taken for {size}, the square size that fits the layers."
            )
        return Peeled("layers", x, self.front.errors, exact, complete, self.layers, self.notes)


def vouch(replayed: Replayed, errors: Tensor, leak: Leak, seed: int) -> tuple[Tensor, list[str]]:
    """(B,) which inputs with predicted relative `errors` (B,) are exact, and a sentence for every
    reason why not more."""
    said, B = leak.knowledge.known_batch_size, leak.batch_size
    number = (
        []
        if said in (None, B)
        else [f"The batch was said to hold {said} samples, but {B} were found."]
    )
    unexplained = doubt_unexplained(replayed.replay, "inputs")
    doubts = [*unexplained, *number, *([] if leak.exact else _doubt_unproven(replayed, leak))]
    sizes = MARGIN * errors
    if doubts or not bool(grant_each(sizes, above=True).any()):
        return grant_each(sizes, above=False), doubts
    doubted, notes = _doubt_samples(replayed, leak, seed)
    if not leak.exact:  # nobody has excluded another scale, smoothing or temperature yet
        sizes = torch.maximum(
            sizes, MARGIN * replayed.errors(temperature_open=leak.knowledge.loss is None).to(errors)
        )
    exact = grant_each(sizes.masked_fill(doubted, torch.inf), above=True)
    if not leak.exact and not bool(exact.any()) and not notes:
        notes = [
            (
                "The separation that this continues is not certified, and the layers below do not "
                "make up for it."
            )
        ]
    return exact, notes


def _doubt_unproven(replayed: Replayed, leak: Leak) -> list[str]:
    """Where the separation is not certified, all tensors together must leave no room for another
    batch."""
    Y = replayed.batch.Y
    why = "The separation that this continues is not certified, so neither are the inputs: "
    if leak.knowledge.labels is None and float((Y - (Y > 0.5).to(Y)).abs().max()) > _HARD:
        return [f"{why}soft labels leave room for other ones."]
    if leak.knowledge.known_batch_size is None and not replayed.replay.unexplained < TRACE:
        return [f"{why}a faint sample may be missing."]
    return []


def _doubt_samples(replayed: Replayed, leak: Leak, seed: int) -> tuple[Tensor, list[str]]:
    """(B,) samples that are drowned by what is left, or may be several."""
    notes = []
    faint = ~(replayed.contributions() > FAR)
    if bool(faint.any()):
        notes.append(
            f"Sample {_named(faint)} sends little more to some layer than is left unexplained "
            "there."
        )
    if leak.knowledge.known_batch_size is not None:
        return faint, notes
    several = ~(replayed.twins(seed) > FAR)
    if bool(several.any()):
        notes.append(
            f"Sample {_named(several)} may be several whose inputs differ by a few percent: these "
            "would look like one here. Say the batch size if it is known."
        )
    return faint | several.to(faint), notes


def _named(samples: Tensor) -> str:
    return name_some(samples.nonzero()[:, 0].tolist())
