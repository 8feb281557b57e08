"""Everything above the maps, played again: features, logits, and the gradient of every tensor
there."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx, nn

from unsum.engine.replay import Replay
from unsum.gradients import inputs_of
from unsum.head import Head
from unsum.losses import Loss
from unsum.network.conv_pair import ConvLayer
from unsum.spans.maps.asked import Asked
from unsum.spans.maps.gates import ReluGate, moved_over, with_gates
from unsum.spans.targets import LossReading
from unsum.update import Update

# of the largest gradient: tensors that BatchNorm makes useless (biases below it) hold rounding
# alone
_SILENT = 1e-5
# through all relus: those above are set right before what they send is looked at, and once more
# after
_PASSES = 2


def in_client_mode(module: fx.GraphModule, *, train: bool) -> fx.GraphModule:
    """BatchNorm as the client had it; everything else, dropout say, as in eval mode. Running
    statistics stay."""
    module.eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.train(train)
            part.track_running_stats = not train
    return module


def shared_sizes(gradients: Mapping[str, Tensor]) -> dict[str, float]:
    """Parameter → size of its gradient; a norm's two vectors share the larger one: sums of terms
    that cancel have more rounding than they are long."""
    sizes = {name: float(gradient.norm()) for name, gradient in gradients.items()}
    vectors: dict[str, float] = {}
    for name, gradient in gradients.items():
        if gradient.ndim == 1:
            module = name.rpartition(".")[0]
            vectors[module] = max(vectors.get(module, 0.0), sizes[name])
    return {
        name: max(vectors[name.rpartition(".")[0]] if gradients[name].ndim == 1 else size, 1e-300)
        for name, size in sizes.items()
    }


@dataclass(frozen=True)
class PlayedTail:
    """One pass of all samples: what the two convolutions and the head read, δ at what they wrote,
    and what each tensor leaves."""

    features: Tensor
    logits: Tensor
    read: dict[str, Tensor]
    sent: dict[str, Tensor]
    left: dict[str, Tensor]  # parameter → gradient sent less gradient played
    replay: Replay


@dataclass(frozen=True)
class Tail:
    """The logits as a function of the maps, in float64, with BatchNorm in the client's mode."""

    module: fx.GraphModule
    head: str
    convs: tuple[str, ...]
    gradients: dict[str, Tensor] = field(repr=False)
    gates: tuple[ReluGate, ...] = ()  # the last first
    # gate → what is added to what it reads
    moved: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        module: fx.GraphModule,
        head: Head,
        layers: tuple[ConvLayer, ...],
        update: Update,
        *,
        train: bool,
    ) -> Tail:
        module = in_client_mode(module.to(head.W.device), train=train)
        held = {
            name: update.gradients[name]
            for name, _ in module.named_parameters()
            if name in update.gradients
        }
        gradients = {name: gradient.to(head.W.device).double() for name, gradient in held.items()}
        largest = max(float(gradient.norm()) for gradient in gradients.values())
        heard = {
            name: gradient
            for name, gradient in gradients.items()
            if float(gradient.norm()) > _SILENT * largest
        }
        gates = tuple(gate for gate in with_gates(module) if gate.bias in heard)
        return cls(module, head.name, tuple(layer.name for layer in layers), heard, gates)

    def coarse(self) -> Tail:
        """The same in float32: enough for differences of a hundredth."""
        gradients, moved = (
            {name: t.float() for name, t in held.items()} for held in (self.gradients, self.moved)
        )
        return replace(
            self, module=copy.deepcopy(self.module).float(), gradients=gradients, moved=moved
        )

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """(features (B, H), logits (B, C)) of maps (B, C, h, w)."""
        with torch.no_grad(), inputs_of(self.module.get_submodule(self.head)) as seen:
            logits: Tensor = self.module(maps)
        return seen[-1].flatten(1), logits

    def answer(self, asked: Asked, maps: Tensor) -> tuple[LossReading, PlayedTail]:
        """What the head says of the samples, and all that they send."""
        reading = asked.read_loss(*self.forward(maps))
        return reading, self.play(maps, reading.Y, reading.weights, reading.loss)

    def settled(
        self, asked: Asked, maps: Tensor, errors: Tensor
    ) -> tuple[Tail, LossReading, PlayedTail]:
        """The same with relus on the client's side of zero, where maps that err by `errors` (B,)
        leave it open."""
        tail = replace(self, moved={})
        reading, played = tail.answer(asked, maps)
        for gate in _PASSES * self.gates:
            values, sent = played.read[gate.before], played.sent[gate.after]
            moved = moved_over(values, sent, self.gradients[gate.bias], errors)
            if not torch.equal(moved, tail.moved.get(gate.before, torch.zeros_like(moved))):
                tail = replace(tail, moved=tail.moved | {gate.before: moved})
                reading, played = tail.answer(asked, maps)
        return tail, reading, played

    def play(self, maps: Tensor, Y: Tensor, weights: Tensor, loss: Loss) -> PlayedTail:
        """The gradients that samples with targets Y and weights (B,) send."""
        names = (
            *self.convs,
            *(name for gate in self.gates for name in (gate.before, gate.after)),
            self.head,
        )
        layers = {name: self.module.get_submodule(name) for name in names}
        read: dict[str, Tensor] = {}
        written: dict[str, Tensor] = {}
        parameters = {
            name: p for name, p in self.module.named_parameters() if name in self.gradients
        }
        with ExitStack() as hooks, torch.enable_grad():
            for name, layer in layers.items():

                def keep(
                    _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, name: str = name
                ) -> Tensor:
                    read[name], written[name] = inputs[0].detach(), output
                    moved = self.moved.get(name)
                    # or in place what was kept would change
                    return output.clone() if moved is None else output + moved

                hooks.enter_context(layer.register_forward_hook(keep))
            logits = self.module(maps)
            G = loss.gradient(logits.detach(), Y) * weights[:, None]
            wanted = [*parameters.values(), *(written[name] for name in names)]
            found = torch.autograd.grad(logits, wanted, G)
        left = {name: self.gradients[name] - g for name, g in zip(parameters, found, strict=False)}
        sent = dict(zip(names, found[len(parameters) :], strict=True))
        replay = Replay.within(self.gradients, left, shared_sizes(self.gradients))
        return PlayedTail(read[self.head].flatten(1), logits.detach(), read, sent, left, replay)
