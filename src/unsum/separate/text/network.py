"""What a language model's layers read: its linear layers in the order in which they are called, and their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unsum.equation.span import Span, span_of

_TOKENS_AT_ONCE = 1 << 14  # positions in one forward pass of candidates


class _Enough(Exception):  # noqa: N818 (no error: the layer that was asked for has been reached)
    pass


@dataclass(frozen=True)
class Layer:
    """A linear layer that reads (n, L, H), with its gradient as (outputs, H)."""

    name: str
    module: nn.Module
    gradient: Tensor

    @cached_property
    def span(self) -> Span:
        return span_of(self.gradient)


def linear_layers(model: nn.Module, gradients: Mapping[str, Tensor]) -> list[Layer]:
    """The layers whose gradient was sent, in the order of their calls; a head that shares its weight is left out."""
    candidates = {
        module: name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) or _is_transposed(module)
    }
    called: list[nn.Module] = []
    with ExitStack() as hooks, torch.no_grad():
        for module in candidates:
            hooks.enter_context(module.register_forward_pre_hook(lambda m, _inputs: called.append(m)))
        model(torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device))
    layers = []
    for module in dict.fromkeys(called):
        gradient = gradients.get(f"{candidates[module]}.weight")
        if gradient is not None:
            layers.append(Layer(candidates[module], module, gradient.T if _is_transposed(module) else gradient))
    return layers


def read_by(model: nn.Module, module: nn.Module, tokens: Tensor, position: int | slice) -> Tensor:
    """What a module reads at `position` for tokens (N, L): (N, H), or (N, positions, H) for a slice, in many passes.

    A pass ends at the module: the layers above it are not computed.
    """
    seen: list[Tensor] = []

    def remember(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0].detach()[:, position])
        raise _Enough

    with module.register_forward_pre_hook(remember), torch.no_grad():
        for part in tokens.split(max(1, _TOKENS_AT_ONCE // tokens.shape[1])):
            with suppress(_Enough):
                model(part)
    return torch.cat(seen)


def _is_transposed(module: nn.Module) -> bool:
    """Hugging Face's Conv1D: a linear layer that keeps its weight as (inputs, outputs)."""
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2
