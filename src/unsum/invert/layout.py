"""How a backbone's features lie in space: a map, tokens of a grid, or a vector that pooling
left."""

from __future__ import annotations

import copy
import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unsum.gradients import in_eval_mode
from unsum.head import collect_features, find_head
from unsum.models.inner import tap


@dataclass(frozen=True)
class Layout:
    """`map`: (C, h, w); `tokens`: (N, D), N a square, or one more for a class token; `vector`:
    (H,)."""

    kind: Literal["map", "tokens", "vector"]
    shape: tuple[int, ...]

    @property
    def grid(self) -> tuple[int, int, int]:
        """(channels, height, width); a vector is a map of one place."""
        if self.kind == "map":
            channels, height, width = self.shape
            return channels, height, width
        if self.kind == "tokens":
            side = math.isqrt(self.shape[0])
            return self.shape[1], side, side
        return self.shape[0], 1, 1

    @property
    def card(self) -> dict[str, Any]:
        """As an inverse's card has it."""
        return {"kind": self.kind, "shape": list(self.shape)}

    def as_map(self, features: Tensor) -> Tensor:
        """(B, H) → (B, C, h, w)."""
        channels, height, width = self.grid
        if self.kind == "tokens":
            # a class token stands in front
            tokens = features.unflatten(1, self.shape)[:, -height * width :]
            features = tokens.transpose(1, 2)
        return features.reshape(-1, channels, height, width)


def feature_layout(model: nn.Module, size: int, layer: str | None = None) -> Layout:
    """By running `model` on a picture of `size`²: the last map or tokens that the head reads
    unchanged, or what `layer` reads."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim in (3, 4) and len(output) == 1:
            seen.append(output.detach().clone())  # a later in-place activation would change it

    network = model if layer is None else copy.deepcopy(model)
    tapped = None if layer is None else tap(network, layer)
    head = find_head(network)[1] if tapped is None else None
    with ExitStack() as hooks, in_eval_mode(network):
        for module in network.modules():
            hooks.enter_context(module.register_forward_hook(keep))
        if tapped is None:
            features = collect_features(network, _picture(model, size), head)[0]
        else:
            with torch.no_grad():
                network(_picture(model, size))
            features = tapped.read[0]
    if features.ndim == 3:
        return Layout("map", tuple(features.shape))
    for output in reversed(seen):
        flat = output[0].flatten()
        if not torch.equal(flat, features) and not torch.equal(flat.relu(), features):
            continue
        if output.ndim == 4 and output[0, 0].numel() > 1:
            return Layout("map", tuple(output.shape[1:]))
        sides = [
            math.isqrt(count) ** 2 == count for count in (output.shape[1], output.shape[1] - 1)
        ]
        if output.ndim == 3 and output.shape[1] > 1 and any(sides):
            return Layout("tokens", tuple(output.shape[1:]))
    return Layout("vector", (features.numel(),))


def _picture(model: nn.Module, size: int) -> Tensor:
    parameter = next(model.parameters())
    return torch.linspace(0, 1, 3 * size * size).to(parameter).view(1, 3, size, size)
