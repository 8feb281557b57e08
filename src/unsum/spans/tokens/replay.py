"""The whole network played again on the pictures found, in float64: what it leaves of every tensor
that was sent."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from unsum.engine.replay import Replay, norms, tolerance
from unsum.engine.twins import Passed
from unsum.gradients import inputs_of, main_output
from unsum.losses import Loss
from unsum.network.layers import departure
from unsum.spans.tokens.network import PatchNetwork
from unsum.update import Update


@dataclass(frozen=True)
class PictureBatch:
    """Pictures (B, c, h, w) with targets Y (B, C) and weights (B,) under a loss."""

    pictures: Tensor
    Y: Tensor
    weights: Tensor
    loss: Loss

    def at(self, pictures: Tensor) -> PictureBatch:
        return replace(self, pictures=pictures)


@dataclass(frozen=True)
class PlayedPictures:
    """`left` is gradient sent less gradient played, tensor by tensor; `delta` (B, N, d) is ∂loss/∂u
    at the patch layer."""

    features: Tensor
    logits: Tensor
    left: Mapping[str, Tensor]
    delta: Tensor
    replay: Replay


@dataclass(frozen=True)
class Player:
    """The network in one precision, in eval mode: dropout, which nobody knows, would be a doubt."""

    model: nn.Module
    head: str
    layer: str
    gradients: Mapping[str, Tensor] = field(repr=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        head: str,
        network: PatchNetwork,
        update: Update,
        device: torch.device,
    ) -> Player:
        double = copy.deepcopy(model).to(device).double().eval()
        double.requires_grad_(False)
        return cls(
            double, head, network.name, {name: g.to(device) for name, g in update.gradients.items()}
        )

    def coarse(self) -> Player:
        """The same in float32: enough for differences of a hundredth."""
        return Player(copy.deepcopy(self.model).float(), self.head, self.layer, self.gradients)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """(features (B, H), logits (B, C))."""
        with torch.no_grad(), inputs_of(self.model.get_submodule(self.head)) as seen:
            logits = main_output(self.model(pictures))
        return seen[-1].flatten(1), logits

    def play(self, pictures: Tensor, Y: Tensor, weights: Tensor, loss: Loss) -> PlayedPictures:
        """The gradients that pictures with targets Y and weights (B,) send, picture by picture."""
        deltas, features, logits, parts = [], [], [], []
        with self._differentiable() as parameters:
            left = {name: self.gradients[name].double() for name in parameters}
            for x, y, weight in zip(pictures, Y, weights, strict=True):
                found, delta, feature, logit = self._one(
                    x[None], y[None], weight, loss, list(parameters.values())
                )
                norms_of = []
                for name, g in zip(parameters, found, strict=True):
                    norms_of.append(torch.zeros_like(weight) if g is None else g.norm())
                    left[name] = left[name] if g is None else left[name] - g
                parts.append(torch.stack(norms_of))
                deltas.append(delta)
                features.append(feature)
                logits.append(logit)
        replay = self._replay(left, torch.stack(parts).double())
        joined = [torch.cat(parts) for parts in (features, logits, deltas)]
        return PlayedPictures(joined[0], joined[1], left, joined[2], replay)

    def pass_through(
        self, pictures: Tensor, Y: Tensor, weights: Tensor, loss: Loss
    ) -> dict[str, Passed]:
        """Layer → what every token's row of it read, and ∂loss/∂(what it wrote)."""
        layers = {
            name: module
            for name, module in self.model.named_modules()
            if self._by_tokens(name, module)
        }
        read: dict[str, Tensor] = {}
        written: dict[str, Tensor] = {}

        def keep(
            module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, name: str
        ) -> Tensor:
            read[name] = _rows(module, inputs[0].detach(), written=False)
            written[name] = output if output.requires_grad else output.requires_grad_()
            return written[name].clone()

        with ExitStack() as hooks, torch.enable_grad():
            for name, layer in layers.items():
                hooks.enter_context(layer.register_forward_hook(partial(keep, name=name)))
            logits = main_output(self.model(pictures))
            G = loss.gradient(logits.detach(), Y) * weights[:, None]
            sent = torch.autograd.grad(logits, list(written.values()), G)
        return {
            name: Passed(read[name], _rows(layers[name], g, written=True))
            for name, g in zip(written, sent, strict=True)
        }

    @contextmanager
    def _differentiable(self) -> Iterator[dict[str, nn.Parameter]]:
        parameters = {
            name: p for name, p in self.model.named_parameters() if name in self.gradients
        }
        try:
            for p in parameters.values():
                p.requires_grad_()
            # the one that can be differentiated twice
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
                yield parameters
        finally:
            for p in parameters.values():
                p.requires_grad_(False)

    def gradients_of(self, batch: PictureBatch) -> dict[str, Tensor]:
        """The gradient of every tensor that was sent."""
        with self._differentiable() as parameters:
            logits = main_output(self.model(batch.pictures))
            G = batch.loss.gradient(logits.detach(), batch.Y) * batch.weights[:, None]
            found = torch.autograd.grad(logits, list(parameters.values()), G, allow_unused=True)
        return {name: g for name, g in zip(parameters, found, strict=True) if g is not None}

    def pulled_back(self, batch: PictureBatch, weights: Mapping[str, Tensor]) -> Tensor:
        """(B, c, h, w) the derivative of Σ_t ⟨∇_t, weights_t⟩ by the pictures."""
        with self._differentiable() as parameters:
            pictures = batch.pictures.detach().requires_grad_()
            logits = main_output(self.model(pictures))
            G = batch.loss.gradient(logits, batch.Y) * batch.weights[:, None]
            wanted = [parameters[name] for name in weights]
            found = torch.autograd.grad(logits, wanted, G, create_graph=True)
            whole = torch.stack(
                [(g * weights[name]).sum() for name, g in zip(weights, found, strict=True)]
            ).sum()
            return torch.autograd.grad(whole, pictures)[0]

    def _by_tokens(self, name: str, module: nn.Module) -> bool:
        kind = isinstance(module, nn.Linear) and departure(module) is None
        parent = name.rpartition(".")[0]
        inside = parent != "" and isinstance(
            self.model.get_submodule(parent), nn.MultiheadAttention
        )  # called by its weight
        return (
            f"{name}.weight" in self.gradients
            and name != self.head
            and (name == self.layer or kind)
            and not inside
        )

    def _one(
        self, x: Tensor, y: Tensor, weight: Tensor, loss: Loss, parameters: list[nn.Parameter]
    ) -> tuple[tuple[Tensor | None, ...], Tensor, Tensor, Tensor]:
        written: list[Tensor] = []

        def keep(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            written.append(output if output.requires_grad else output.requires_grad_())
            return output.clone()

        layer, head = self.model.get_submodule(self.layer), self.model.get_submodule(self.head)
        hook = layer.register_forward_hook(keep)
        try:
            with torch.enable_grad(), inputs_of(head) as seen:
                logits = main_output(self.model(x))
                G = loss.gradient(logits.detach(), y) * weight
                found = torch.autograd.grad(logits, [*parameters, written[0]], G, allow_unused=True)
        finally:
            hook.remove()
        delta = found[-1]
        assert delta is not None
        return (
            found[:-1],
            _rows(layer, delta, written=True),
            seen[-1].detach().flatten(1),
            logits.detach(),
        )

    def _replay(self, left: Mapping[str, Tensor], parts: Tensor) -> Replay:
        # Tensors that hardly get a gradient (the keys' bias, which softmax ignores) hold the
        # rounding of what passes by them.
        sent = norms(self.gradients[name] for name in left)
        sizes = dict(zip(left, torch.maximum(sent, _SILENT * sent.norm()).tolist(), strict=True))
        limits = sent.new_tensor([tolerance(self.gradients[name].dtype) for name in left])
        return Replay.within(self.gradients, left, sizes, limits, parts)


def _rows(layer: nn.Module, values: Tensor, *, written: bool) -> Tensor:
    """(B, places, n) of what a layer read or wrote."""
    if isinstance(layer, nn.Conv2d):
        patches = values if written else F.unfold(values, layer.kernel_size, stride=layer.stride)
        return patches.flatten(2).mT
    return values.reshape(len(values), -1, values.shape[-1])


_SILENT = 1e-4  # of the whole gradient: tensors below it are judged as if they had that much
