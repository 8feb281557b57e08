"""Send inputs of the attacker's own through the model, and see which gradient they would have left
in the head.

The head's gradient has a closed form, so a forward pass is enough: for labels all equal to a, g_c =
Σ_k ∇W_ck = mean_i (p_ic − [c = a]) S_i with S_i = Σ_k f_ik. The model stays in the mode it is in
(pass it as the client trains it) and is left untouched: BatchNorm writes its statistics into copies
of its buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unsum.errors import UnsumError
from unsum.gradients import inputs_of
from unsum.head import Head
from unsum.labels.method import Clues

ROUNDS = 10  # of random inputs, whose gradients are averaged
# tried in turn; networks that pool take the first
_SIDES = (64, 224, 32, 28, 16, 96, 128, 256, 299)


def probe_size(B: int) -> int:
    """Inputs per round: the batch's own number, but two for BatchNorm to compare and 64 where more
    only cost time."""
    return min(max(B, 2), 64)


def negative_impact(name: str, impact: float) -> float:
    """The impact m, refused where it is zero: then nothing pulls a row down."""
    if impact < 0:
        return impact
    raise UnsumError(
        f"The model's features vanish for the inputs that {name!r} sends through it; use 'llg' or "
        "'exact'."
    )


@dataclass(frozen=True)
class Probe:
    """A model under trial, and the head that its features reach."""

    head: Head
    model: nn.Module
    size: int  # what the gradient is multiplied by where it is a sum over the batch
    seed: int

    @classmethod
    def of(cls, evidence: Clues) -> Probe:
        size = evidence.B if evidence.head.reduction == "sum" else 1
        return cls(evidence.head, evidence.model, size, evidence.seed)

    def row_sums(self, inputs: Tensor, label: int | None) -> Tensor:
        """(C,) g for a batch of one label, in float64; None leaves out the label's own share and so
        gives the offset."""
        W, b = self.head.W, self.head.b
        features = self.send(inputs)[0].to(W)
        sums = features.sum(1, dtype=torch.float64)
        P = torch.nn.functional.linear(features, W, b).double().softmax(1)
        g = (P * sums[:, None]).mean(0)
        if label is not None:
            g[label] -= sums.mean()
        return g * self.size

    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, found by trying: the first layer tells the channels, the forward
        pass the rest."""
        for shape in self._likely_shapes():
            try:
                self.send(torch.zeros(2, *shape))
            except RuntimeError:  # what torch raises where shapes do not fit
                continue
            return shape
        raise UnsumError(
            "'llg*' cannot tell which inputs the model takes; use 'llg+' with auxiliary=(images, "
            "labels)."
        )

    def _likely_shapes(self) -> Iterator[tuple[int, ...]]:
        for module in self.model.modules():
            if isinstance(module, nn.Conv2d):
                yield from ((module.in_channels, side, side) for side in _SIDES)
                return
            if isinstance(module, nn.Linear):
                yield (module.in_features,)
                for channels in (3, 1):  # a network that flattens pictures itself
                    side = round((module.in_features / channels) ** 0.5)
                    yield (channels, side, side)
                return

    def places(self, inputs: Tensor) -> tuple[int, ...]:
        """(c, h, w) of the map that is flattened for the head, or (H,) where there is none."""
        maps: list[Tensor] = []

        def note(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and output.ndim == 4:
                maps.append(output)

        with ExitStack() as hooks:
            for module in self.model.modules():
                hooks.enter_context(module.register_forward_hook(note))
            features = self.send(inputs)[0]
        for made in reversed(maps):
            flat = made.flatten(1)
            if flat.shape == features.shape and torch.equal(flat, features):
                return tuple(made.shape[1:])
        return (features.shape[1],)

    def send(
        self, inputs: Tensor, weights: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """(n, H) what reaches the head, and what leaves it, with some `weights` in the place of the
        model's own.

        Dropout is drawn anew from the seed, not from the caller's random state.
        """
        linear = self.model.get_submodule(self.head.name)
        weight = next(self.model.parameters())
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        devices = [weight.device] if weight.device.type == "cuda" else []
        with inputs_of(linear) as seen, torch.no_grad(), torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.seed)
            answers = functional_call(
                self.model, {**(weights or {}), **buffers}, (inputs.to(weight),)
            )
        return seen[-1].detach().flatten(1), answers
