"""The first block of a transformer, found in the order of its calls and checked by doing what it
does.

    z = norm(u)        w = u + out(attention(q(z), k(z), v(z)))
    y = w + second(act(first(norm₂(w))))        norm′(y) …

What does not compute this (norms behind the sums, scaled or parallel branches, norms of q and k) is
not such a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unsum.network.activations import Activation, activation_of

_SAME = 1e-4  # relative difference within which two float32 passes agree
_ATTENTION = ("num_heads", "num_attention_heads")  # what modules call the number of heads


@dataclass(frozen=True)
class Call:
    """A module that was called, with what it read and wrote."""

    name: str
    module: nn.Module
    read: Tensor
    written: Any
    owner: nn.Module  # that it is a part of


@dataclass(frozen=True)
class Map:
    """Weights (m, n) and bias of a linear map, with the names that their gradients have."""

    W: Tensor
    b: Tensor | None
    weight: str
    bias: str | None

    @classmethod
    def of(cls, name: str, module: nn.Linear) -> Map:
        bias = None if module.bias is None else f"{name}.bias"
        return cls(
            module.weight.detach(),
            None if bias is None else module.bias.detach(),
            f"{name}.weight",
            bias,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.W.to(x), None if self.b is None else self.b.to(x))


@dataclass(frozen=True)
class FirstBlock:
    """The block's maps; `readers` are the weights that read the next block's norm."""

    norm: nn.LayerNorm
    qkv: tuple[Tensor, Tensor | None]  # (3d, d) and (3d,)
    heads: int
    out: Map
    second_norm: nn.LayerNorm
    first: Map
    second: Map
    activation: Activation
    next_norm: nn.LayerNorm
    readers: tuple[str, ...]

    def split(self, z: Tensor) -> list[Tensor]:
        """q, k, v (…, heads, d / heads) of normed tokens z (…, d)."""
        W, b = self.qkv
        parts = nn.functional.linear(z, W.to(z), None if b is None else b.to(z)).chunk(3, -1)
        return [part.unflatten(-1, (self.heads, -1)) for part in parts]

    def attended(self, z: Tensor) -> Tensor:
        """(T, d) the heads' outputs side by side, of one picture's tokens z (T, d)."""
        q, k, v = (part.transpose(0, 1) for part in self.split(z))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return (weights @ v).transpose(0, 1).flatten(1)


def read_block(calls: list[Call], attention: int, norm: Call) -> FirstBlock | None:
    """The block whose attention is `calls[attention]`; None where it is another kind of block."""
    module, rest = calls[attention].module, calls[attention:]
    assert isinstance(norm.module, nn.LayerNorm)
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is None or module.bias_k is not None:
            return None
        qkv, heads = (
            (module.in_proj_weight.detach(), _detached(module.in_proj_bias)),
            module.num_heads,
        )
        out = Map.of(f"{calls[attention].name}.out_proj", module.out_proj)
        rest = rest[1:]
    else:
        readers = [
            call
            for call in rest
            if isinstance(call.module, nn.Linear) and call.read is norm.written
        ]
        found = _joined(readers)
        parent = _heads(readers[0].owner) if readers else None
        rest = [call for call in rest if call not in readers]
        if found is None or parent is None or not rest or not isinstance(rest[0].module, nn.Linear):
            return None
        qkv, heads = found, parent
        out, rest = Map.of(rest[0].name, rest[0].module), rest[1:]
    return _with_mlp(norm, qkv, heads, out, rest)


def _with_mlp(
    norm: Call, qkv: tuple[Tensor, Tensor | None], heads: int, out: Map, rest: list[Call]
) -> FirstBlock | None:
    modules = [call.module for call in rest[:4]]
    if len(modules) < 4:
        return None
    second_norm, first, second, next_norm = modules
    normed = isinstance(second_norm, nn.LayerNorm) and isinstance(next_norm, nn.LayerNorm)
    if not normed or not isinstance(first, nn.Linear) or not isinstance(second, nn.Linear):
        return None
    activation = _activation(rest[1].written, rest[2].read)
    if activation is None:
        return None
    assert isinstance(norm.module, nn.LayerNorm)
    assert isinstance(second_norm, nn.LayerNorm)
    assert isinstance(next_norm, nn.LayerNorm)
    maps = Map.of(rest[1].name, first), Map.of(rest[2].name, second)
    readers = _readers(rest[4:], rest[3])
    block = FirstBlock(
        norm.module, qkv, heads, out, second_norm, *maps, activation, next_norm, readers
    )
    u, w, y = (_tokens(call.read) for call in (norm, rest[0], rest[3]))
    same = _close(w, u + block.out(block.attended(_tokens(norm.written))))
    return block if same and _close(y, w + _tokens(rest[2].written)) else None


def _tokens(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1])


def _close(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= _SAME * float(one.norm())


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _joined(readers: list[Call]) -> tuple[Tensor, Tensor | None] | None:
    """q, k and v as one map: fused already, or three that are told by their names."""
    modules = [call.module for call in readers if isinstance(call.module, nn.Linear)]
    if len(modules) == 1 and modules[0].out_features == 3 * modules[0].in_features:
        return modules[0].weight.detach(), _detached(modules[0].bias)
    named = {call.name.rpartition(".")[2][0]: call.module for call in readers}
    if len(modules) != 3 or set(named) != {"q", "k", "v"}:
        return None
    parts = [part for letter in "qkv" for part in [named[letter]] if isinstance(part, nn.Linear)]
    if any(part.out_features != part.in_features for part in parts):
        return None
    biases = [
        torch.zeros(part.out_features).to(part.weight) if part.bias is None else part.bias.detach()
        for part in parts
    ]
    return torch.cat([part.weight.detach() for part in parts]), torch.cat(biases)


def _heads(owner: nn.Module) -> int | None:
    """How many heads an attention has, as it says itself or as its settings do."""
    holders = (owner, getattr(owner, "config", None))
    found = (getattr(holder, name, None) for holder in holders for name in _ATTENTION)
    return next((count for count in found if isinstance(count, int)), None)


def _readers(calls: list[Call], norm: Call) -> tuple[str, ...]:
    """Parameters that multiply what a norm wrote."""
    names = []
    for call in calls:
        if call.read is not norm.written:
            continue
        if (
            isinstance(call.module, nn.MultiheadAttention)
            and call.module.in_proj_weight is not None
        ):
            names.append(f"{call.name}.in_proj_weight")
        elif isinstance(call.module, nn.Linear):
            names.append(f"{call.name}.weight")
    return tuple(names)


def _activation(written: Tensor, read: Tensor) -> Activation | None:
    """The one that makes what the second map read of what the first one wrote."""
    for module in (nn.GELU(), nn.ReLU(), nn.GELU("tanh"), nn.SiLU()):
        found = activation_of(module)
        if found is not None and _close(read, found.function(written)):
            return found
    return None
