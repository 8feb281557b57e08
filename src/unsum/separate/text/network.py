"""What a language model's layers read: its linear layers in the order in which they are called, and their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_TOKENS_AT_ONCE = 1 << 14  # positions in one forward pass of candidates


class _Enough(Exception):  # noqa: N818 (no error: the layer that was asked for has been reached)
    pass


@dataclass(frozen=True)
class Layer:
    """A linear layer that reads (n, L, H), with its gradient as (outputs, H)."""

    name: str
    module: nn.Module
    gradient: Tensor


def linear_layers(model: nn.Module, gradients: Mapping[str, Tensor]) -> list[Layer]:
    """The layers whose gradient was sent, in the order of their calls; a head that shares its weight is left out."""
    candidates = {
        module: name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) or _is_transposed(module)
    }
    called: list[nn.Module] = []
    hooks = [module.register_forward_pre_hook(lambda m, _inputs: called.append(m)) for module in candidates]
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            model(torch.zeros(1, 2, dtype=torch.long, device=device))
    finally:
        for hook in hooks:
            hook.remove()
    layers = []
    for module in dict.fromkeys(called):
        gradient = gradients.get(f"{candidates[module]}.weight")
        if gradient is not None:
            layers.append(Layer(candidates[module], module, gradient.T if _is_transposed(module) else gradient))
    return layers


def read_by(model: nn.Module, modules: Sequence[nn.Module], tokens: Tensor, position: int | slice) -> list[Tensor]:
    """What each module reads at `position` for tokens (N, L): (N, H), or (N, positions, H) for a slice, in many passes.

    The pass ends at the last of the modules: the layers above it are not computed.
    """
    rows = max(1, _TOKENS_AT_ONCE // tokens.shape[1])
    parts = [_read(model, modules, part, position) for part in tokens.split(rows)]
    return [torch.cat(pieces) for pieces in zip(*parts, strict=True)]


def _read(model: nn.Module, modules: Sequence[nn.Module], tokens: Tensor, position: int | slice) -> list[Tensor]:
    seen: dict[nn.Module, Tensor] = {}

    def remember(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen[module] = inputs[0].detach()[:, position]
        if len(seen) == len(modules):
            raise _Enough

    hooks = [module.register_forward_pre_hook(remember) for module in modules]
    try:
        with torch.no_grad():
            model(tokens)
    except _Enough:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return [seen[module] for module in modules]


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Eval mode inside the block, every module's own mode again after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _is_transposed(module: nn.Module) -> bool:
    """Hugging Face's Conv1D: a linear layer that keeps its weight as (inputs, outputs)."""
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2
