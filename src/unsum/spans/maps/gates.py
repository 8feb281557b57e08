"""Signs that the client's rounding decided: where a relu's input is all but zero, the bias that was
added to it tells its side.

One relu on the wrong side is a share of its layer's gradient that no rounding explains, though the
maps are right to the last digit. ∇β of what was added before the relu is the sum of the gradient
over the places that were on, channel by channel: it shows that one is wrong, and nearly always
which (`peel.residual.masks`). Such entries are moved over zero, by less than maps may err.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from unsum.network.chain import activation_at
from unsum.peel.residual.masks import confirmed

_ADD: set[Any] = {operator.add, operator.iadd, torch.add, "add", "add_"}
_CLEAR = 10.0  # times the predicted error: values above are on the side that they seem to be on
# of the root mean square: what float32 leaves open, and what noise of a hundredth does
_LEAST, _MOST = 1e-6, 3e-2
_OVER = 1e-9  # of the root mean square: how far over zero


@dataclass(frozen=True)
class ReluGate:
    """A relu: the layers that pass on what it reads and what it writes, and the bias that was added
    last before it."""

    before: str
    after: str
    bias: str


def with_gates(module: fx.GraphModule) -> tuple[ReluGate, ...]:
    """All relus whose input has a bias of its own, the last first; layers that change nothing are
    put around them."""
    gates = []
    for number, node in enumerate(list(module.graph.nodes)):
        layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        activation = activation_at(node, layer)
        bias = (
            None
            if activation is None or activation.family != "relu"
            else _bias(module, node.all_input_nodes[0])
        )
        if bias is None:
            continue
        gate = ReluGate(f"before_relu{number}", f"after_relu{number}", bias)
        for name in (gate.before, gate.after):
            module.add_submodule(name, nn.Identity())
        read = node.all_input_nodes[0]
        with module.graph.inserting_before(node):
            node.replace_input_with(read, module.graph.call_module(gate.before, (read,)))
        with module.graph.inserting_after(node):
            written = module.graph.call_module(gate.after, (node,))
        node.replace_all_uses_with(
            written, delete_user_cb=lambda user, written=written: user is not written
        )
        gates.append(gate)
    module.recompile()
    return tuple(reversed(gates))


def _bias(module: fx.GraphModule, node: fx.Node) -> str | None:
    """The name of the bias that is added to the node's value."""
    nodes = node.all_input_nodes if node.target in _ADD else [node]
    for one in nodes:
        layer = module.get_submodule(str(one.target)) if one.op == "call_module" else None
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm | nn.Conv2d) and layer.bias is not None:
            return f"{one.target}.bias"
    return None


def moved_over(values: Tensor, gradient: Tensor, grad_bias: Tensor, errors: Tensor) -> Tensor:
    """(B, C, h, w) what to add to a relu's input, known to relative `errors` (B,), for ∇bias to be
    the sum of `gradient` over what is on."""
    size = values.square().mean((1, 2, 3), keepdim=True).sqrt()
    doubt = (_CLEAR * errors.nan_to_num(torch.inf)).clamp(_LEAST, _MOST)[:, None, None, None]
    on = confirmed(values, gradient, grad_bias, doubt * size, signed=True).positive
    return torch.where(on == (values > 0), 0.0, torch.where(on, _OVER, -_OVER) * size - values)
