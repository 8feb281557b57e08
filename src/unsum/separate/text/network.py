"""What a language model's layers read: its linear layers in the order in which they are called, and
their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unsum.equation.span import Span, span_of
from unsum.network.layers import departure, is_transposed

_TOKENS_AT_ONCE = 1 << 14  # positions in one forward pass of candidates


class _Enough(Exception):  # noqa: N818 (no error: the layer that was asked for has been reached)
    pass


@dataclass(frozen=True)
class Layer:
    """A linear layer that reads (n, L, H), with its gradient as (outputs, H)."""

    name: str
    module: nn.Module
    gradient: Tensor
    names: tuple[str, ...] = ()  # of all layers that it stands for, where there are several

    @cached_property
    def span(self) -> Span:
        return span_of(self.gradient)

    def tensors(self) -> set[str]:
        return {f"{name}.weight" for name in self.names or (self.name,)}


def joined(model: nn.Module, layers: list[Layer]) -> list[Layer]:
    """Layers that read the very same thing as one, as queries, keys and values do: their gradients
    share one row space.

    One alone may miss positions: the first query has one key to choose from, so nothing is learned
    from it.
    """
    read: dict[nn.Module, Tensor] = {}
    together: list[list[Layer]] = []
    with ExitStack() as hooks, torch.no_grad():
        for layer in layers:
            hooks.enter_context(
                layer.module.register_forward_pre_hook(lambda m, given: read.update({m: given[0]}))
            )
        model(torch.zeros(1, 2, dtype=torch.long, device=device_of(model)))
    for layer in layers:
        home = next((some for some in together if read[some[0].module] is read[layer.module]), None)
        home.append(layer) if home else together.append([layer])
    return [
        Layer(some[0].name, some[0].module, torch.cat([x.gradient for x in some]),
        tuple(x.name for x in some))
        if len(some) > 1 else some[0] for some in together
    ]  # fmt: skip


def linear_modules(model: nn.Module) -> dict[nn.Module, str]:
    """The layers that compute W x + b, with their names."""
    linear = {
        m: name for name, m in model.named_modules() if isinstance(m, nn.Linear) or is_transposed(m)
    }
    return {m: name for m, name in linear.items() if departure(m) is None}


def linear_layers(model: nn.Module, gradients: Mapping[str, Tensor]) -> list[Layer]:
    """The layers whose gradient was sent, in the order of their calls; a head that shares its
    weight is left out."""
    candidates = linear_modules(model)
    called: list[nn.Module] = []
    with ExitStack() as hooks, torch.no_grad():
        for module in candidates:
            hooks.enter_context(
                module.register_forward_pre_hook(lambda m, _inputs: called.append(m))
            )
        model(torch.zeros(1, 2, dtype=torch.long, device=device_of(model)))
    layers = []
    for module in dict.fromkeys(called):
        gradient = gradients.get(f"{candidates[module]}.weight")
        if gradient is not None:
            layers.append(
                Layer(candidates[module], module, gradient.T if is_transposed(module) else gradient)
            )
    return layers


def read_by(model: nn.Module, module: nn.Module, tokens: Tensor, position: int | slice) -> Tensor:
    """What a module reads at `position` for tokens (N, L): (N, H), or (N, positions, H) for a
    slice, in many passes.

    A pass ends at the module: the layers above it are not computed. A module that reads one vector
    for each whole sequence has one position.
    """
    seen: list[Tensor] = []

    def remember(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        read = by_sequence(inputs[0].detach(), len(part))
        seen.append(
            read[:, position] if read.shape[1] > 1 or isinstance(position, slice) else read[:, 0]
        )
        raise _Enough

    with module.register_forward_pre_hook(remember), torch.no_grad():
        for part in tokens.split(max(1, _TOKENS_AT_ONCE // tokens.shape[1])):
            with suppress(_Enough):
                model(part)
    return torch.cat(seen)


def inputs_of_all(
    model: nn.Module, modules: Iterable[nn.Module], last: nn.Module, tokens: Tensor
) -> dict[nn.Module, Tensor]:
    """What each of some modules reads on the way to `last`."""
    seen: dict[nn.Module, Tensor] = {}

    def stop(_module: nn.Module, _inputs: Any) -> None:
        raise _Enough

    with ExitStack() as hooks, torch.no_grad(), suppress(_Enough):
        for module in modules:
            hooks.enter_context(
                module.register_forward_pre_hook(
                    lambda m, given: seen.update({m: given[0].detach()})
                )
            )
        hooks.enter_context(last.register_forward_pre_hook(stop))
        model(tokens)
    return seen


def read_whole(
    model: nn.Module, module: nn.Module, sequences: Sequence[Sequence[int]]
) -> list[Tensor]:
    """What a module reads at every position of sequences of any lengths: (L, H) for each."""
    answers: list[Tensor] = [torch.empty(0)] * len(sequences)
    for rows, tokens in by_length(sequences, device_of(model)):
        for row, read in zip(rows, read_by(model, module, tokens, slice(None)), strict=True):
            answers[row] = read
    return answers


def read_at_ends(
    model: nn.Module, module: nn.Module, prefixes: Sequence[tuple[int, ...]]
) -> Tensor:
    """(n, H) what a causal model's module reads at the end of each prefix: the same as within any
    longer one."""
    homes: dict[tuple[int, ...], tuple[int, int]] = {}
    longest: list[tuple[int, ...]] = []
    for prefix in sorted(prefixes, key=len, reverse=True):
        if prefix not in homes:
            longest.append(prefix)
            for end in range(1, len(prefix) + 1):
                homes.setdefault(prefix[:end], (len(longest) - 1, end - 1))
    read = read_whole(model, module, longest)
    return torch.stack([read[row][place] for row, place in (homes[prefix] for prefix in prefixes)])


def by_length(
    sequences: Sequence[Sequence[int]], device: torch.device
) -> list[tuple[list[int], Tensor]]:
    """Sequences of one length together, as (rows, tokens): then nothing has to be padded."""
    rows: dict[int, list[int]] = {}
    for row, sequence in enumerate(sequences):
        rows.setdefault(len(sequence), []).append(row)
    return [
        (some, torch.tensor([list(sequences[row]) for row in some], device=device))
        for some in rows.values()
    ]


def by_sequence(read: Tensor, sequences: int) -> Tensor:
    """(n, positions, H) where a module reads (n, H), one vector for each sequence, or all positions
    in one row."""
    return read if read.ndim == 3 else read.reshape(sequences, -1, read.shape[-1])


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
