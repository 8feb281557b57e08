"""The part of a model that can be peeled: a chain of layers from the logits downwards, found by its data flow.

A chain is a list of `Step`s in the order of the forward pass. Each is a layer with weights (Linear or Conv2d) with the
activation that follows it; the last step is the head. Where the flow meets something that cannot be undone (pooling, a
second path, batch statistics, dropout that is on), the chain begins above it, and `stop` says what it was.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from unsum.errors import UnsumError
from unsum.head import trace
from unsum.peel.activations import GELU, IDENTITY, RELU, SIGMOID, SILU, TANH, Activation, activation_of, elu, leaky_relu
from unsum.update import Update

_RESHAPES: set[Any] = {torch.flatten, torch.reshape, "flatten", "view", "reshape", "contiguous", "float"}
_CALLS: dict[Any, Activation] = {
    torch.relu: RELU, functional.relu: RELU, "relu": RELU, "relu_": RELU, torch.sigmoid: SIGMOID, functional.sigmoid: SIGMOID,
    "sigmoid": SIGMOID, torch.tanh: TANH, functional.tanh: TANH, "tanh": TANH, functional.silu: SILU,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One layer z = W·x + b with y = a(z), and the gradients that the update holds for it, in the client's precision."""

    name: str
    module: nn.Linear | nn.Conv2d
    activation: Activation
    W: Tensor
    b: Tensor | None
    grad_W: Tensor
    grad_b: Tensor | None

    @property
    def is_conv(self) -> bool:
        return isinstance(self.module, nn.Conv2d)

    def linear(self, x: Tensor) -> Tensor:
        """z for x, in float64: (B, n) for a Linear, (B, channels, h, w) for a convolution."""
        b = None if self.b is None else self.b.double()
        if self.is_conv:
            return functional.conv2d(x, self.W.double(), b, **self.geometry)
        return functional.linear(x.flatten(1), self.W.double(), b)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation.function(self.linear(x))

    @property
    def geometry(self) -> dict[str, Any]:
        module = self.module
        assert isinstance(module, nn.Conv2d)
        return {
            "stride": module.stride,
            "padding": module.padding,
            "dilation": module.dilation,
            "groups": module.groups,
        }


@dataclass(frozen=True)
class Chain:
    """`steps` from the deepest layer that can be reached up to the head; `stop` says why not further, if so."""

    steps: list[Step]
    stop: str | None
    flattens: bool = False  # the model itself flattens what the first step takes

    @property
    def complete(self) -> bool:
        """Whether the first step's input is the model's own."""
        return self.stop is None


def find_chain(model: nn.Module, update: Update, device: torch.device | str | None = None) -> Chain:
    """The chain of `model` with the update's gradients; at least its head."""
    update.validate(model)
    if isinstance(model, nn.Linear):
        return Chain([_step("", model, IDENTITY, update, device)], None)
    return _walk(model, _graph(model), update, device)


def first_linear(model: nn.Module, update: Update, device: torch.device | str | None = None) -> tuple[Step, bool]:
    """The Linear that takes the model's own input, whatever comes after it, and whether the model flattens before it."""
    update.validate(model)
    if isinstance(model, nn.Linear):
        return _step("", model, IDENTITY, update, device), False
    graph = _graph(model)
    node = next(node for node in graph.nodes if node.op == "placeholder")
    flattened = False
    while len(node.users) == 1:
        node = next(iter(node.users))
        layer = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(layer, nn.Linear):
            problem = _weight_problem(str(node.target), layer, update)
            if problem:
                raise UnsumError(f"The first layer says nothing: {problem}.")
            return _step(str(node.target), layer, IDENTITY, update, device), flattened
        if not _passes(node, layer):
            break
        flattened |= _reshapes(node, layer)
    raise UnsumError(f"The model's input does not go into a Linear but into {_title(node, model)}; use 'layers'.")


def _graph(model: nn.Module) -> fx.Graph:
    try:
        return trace(model)
    except Exception:  # tracing runs the user's own forward on proxies: any exception means "cannot be traced"
        raise UnsumError(
            f"{type(model).__name__} cannot be traced by torch.fx, so its layers cannot be peeled; "
            "remove data-dependent control flow from its forward."
        ) from None


def _walk(model: nn.Module, graph: fx.Graph, update: Update, device: torch.device | str | None) -> Chain:
    node = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    while isinstance(node, (tuple, list)) and node:
        node = node[0]
    steps: list[Step] = []
    activation: Activation | None = None
    stop, flattened = None, False
    while isinstance(node, fx.Node) and node.op != "placeholder":
        if len(node.users) > 1:
            stop = f"the output of {_title(node, model)} is used more than once"
            break
        layer = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        found = _activation(node, layer)
        if _passes(node, layer):
            flattened |= _reshapes(node, layer)
        elif isinstance(layer, (nn.Linear, nn.Conv2d)) and (activation is not None or not steps):
            problem = _weight_problem(str(node.target), layer, update)
            if problem:
                stop = problem
                break
            steps.append(_step(str(node.target), layer, activation or IDENTITY, update, device))
            activation, flattened = IDENTITY, False
        elif found is not None and steps and activation is IDENTITY:
            activation = found
        else:
            stop = f"{_title(node, model)} cannot be undone"
            break
        node = node.args[0] if node.args else None
    if not steps:
        raise UnsumError(f"Nothing can be peeled: {stop}; peeling starts at a Linear that gives the logits.")
    if stop is None and activation is not IDENTITY:
        stop = "an activation stands before the first layer"
    return Chain(steps[::-1], stop, flattened)


def _step(
    name: str, module: nn.Linear | nn.Conv2d, activation: Activation, update: Update, device: torch.device | str | None
) -> Step:
    prefix = f"{name}." if name else ""
    target = device if device is not None else module.weight.device
    grad_b = update.gradients.get(f"{prefix}bias")
    return Step(
        name or type(module).__name__,
        module,
        activation,
        module.weight.detach().to(target),
        None if module.bias is None else module.bias.detach().to(target),
        update.gradients[f"{prefix}weight"].detach().to(target),
        None if grad_b is None else grad_b.detach().to(target),
    )


def _weight_problem(name: str, layer: nn.Linear | nn.Conv2d, update: Update) -> str | None:
    if f"{name}.weight" not in update.gradients:
        return f"the update lacks the gradient of {name!r}"
    if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return f"the convolution {name!r} pads in a way that is not supported (padding_mode zeros and a number are)"
    return None


def _passes(node: fx.Node, layer: nn.Module | None) -> bool:
    """Whether a node changes no value: reshaping, identity, dropout that is off."""
    if isinstance(layer, nn.Dropout):
        return not layer.training or layer.p == 0
    if isinstance(layer, (nn.Identity, nn.Flatten, nn.Unflatten)):
        return True
    if node.op == "call_function" and node.target is operator.getitem:
        return bool(node.args[1] == 0)
    return node.op in ("call_function", "call_method") and node.target in _RESHAPES


def _reshapes(node: fx.Node, layer: nn.Module | None) -> bool:
    return isinstance(layer, nn.Flatten) or (layer is None and node.target in _RESHAPES - {"contiguous", "float"})


def _activation(node: fx.Node, layer: nn.Module | None) -> Activation | None:
    if layer is not None:
        return activation_of(layer)
    if node.op not in ("call_function", "call_method"):
        return None
    if node.target is functional.leaky_relu:
        slope = node.args[1] if len(node.args) > 1 else node.kwargs.get("negative_slope", 0.01)
        return leaky_relu(float(slope)) if isinstance(slope, (int, float)) and slope > 0 else None
    if node.target is functional.elu:
        return elu(1.0) if len(node.args) == 1 and "alpha" not in node.kwargs else None
    if node.target is functional.gelu:
        return GELU if node.kwargs.get("approximate", "none") == "none" and len(node.args) == 1 else None
    return _CALLS.get(node.target)


def _title(node: fx.Node, model: nn.Module) -> str:
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        state = " that is on" if isinstance(module, nn.Dropout) else ""
        return f"the layer {str(node.target)!r} ({type(module).__name__}{state})"
    return f"the operation {getattr(node.target, '__name__', node.target)!r}"
