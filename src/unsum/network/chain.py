"""A chain of layers from the logits downwards, found by the model's data flow.

A chain is a list of `Step`s in the order of the forward pass. Each is a layer with weights (Linear
or Conv2d) with the activation that follows it; the last step is the head. Where the flow meets
something that cannot be undone (pooling, a second path, batch statistics, dropout that is on), the
chain begins above it, and `stop` names it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

from unsum.errors import UnsumError
from unsum.head import output_source, trace
from unsum.network.activations import IDENTITY, Activation, activation_of
from unsum.network.flow import changes_its_input
from unsum.network.layers import departure
from unsum.network.products import left_product, right_product
from unsum.update import Update

Shape = tuple[int, ...]  # of one input, without the batch

_RESHAPES: set[Any] = {
    torch.flatten, torch.reshape, "flatten", "view", "reshape", "contiguous", "float"
}  # fmt: skip
# Calls and the modules that do the same, with the same arguments behind the first.
_CALLS: dict[Any, type[nn.Module]] = {
    torch.relu: nn.ReLU, functional.relu: nn.ReLU, "relu": nn.ReLU, "relu_": nn.ReLU,
    torch.sigmoid: nn.Sigmoid, functional.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid,
    torch.tanh: nn.Tanh, functional.tanh: nn.Tanh, "tanh": nn.Tanh, functional.silu: nn.SiLU,
    functional.leaky_relu: nn.LeakyReLU, functional.elu: nn.ELU, functional.gelu: nn.GELU,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One layer z = W·x + b with y = a(z), and its gradients in the client's precision."""

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
        """z in x's precision: (B, n) of a Linear, (B, channels, h, w) of a convolution.

        No large matrix is copied for it.
        """
        b = None if self.b is None else self.b.to(x)
        if self.is_conv:
            return functional.conv2d(x, self.W.to(x), b, **self.geometry)
        if x.dtype != torch.float64:
            return functional.linear(x, self.W.to(x), b)
        z = right_product(self.W, x).T
        return z if b is None else z + b

    def passed_down(self, delta: Tensor, shape: Shape) -> Tensor:
        """∂loss/∂x, in δ's precision, for inputs of `shape`: δ back through the weights."""
        if self.is_conv:
            return conv2d_input(
                torch.Size((len(delta), *shape)), self.W.to(delta), delta, **self.geometry
            )
        if delta.dtype != torch.float64:
            return delta @ self.W.to(delta)
        return left_product(delta, self.W)[0]

    @property
    def geometry(self) -> dict[str, Any]:
        return {
            name: getattr(self.module, name) for name in ("stride", "padding", "dilation", "groups")
        }

    def output_shape(self, shape: Shape) -> Shape:
        """(channels, h', w') that a convolution makes of (channels, h, w)."""
        ways = (self.geometry[name] for name in ("padding", "dilation", "stride"))
        axes = zip(shape[1:], self.W.shape[2:], *ways, strict=True)
        spare = ((n + 2 * pad - wide * (k - 1) - 1, stride) for n, k, pad, wide, stride in axes)
        return (len(self.W), *(left // stride + 1 for left, stride in spare))


@dataclass(frozen=True)
class Chain:
    """`steps` from the deepest layer within reach up to the head; `stop` says why no deeper."""

    steps: list[Step]
    stop: str | None
    flattens: bool = False  # the model itself flattens what the first step takes

    @property
    def complete(self) -> bool:
        """Whether the first step's input is the model's own."""
        return self.stop is None


def forward(steps: list[Step], X: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What every step reads, and what it writes before its activation, for inputs X of the first.

    The last of the latter are the logits.
    """
    read, written = [X], []
    for step in steps:
        read[-1] = read[-1] if step.is_conv else read[-1].flatten(1)
        written.append(step.linear(read[-1]))
        read.append(step.activation.function(written[-1]))
    return read[:-1], written


def backward(steps: list[Step], written: list[Tensor], delta: Tensor) -> list[Tensor]:
    """δ at what every dense step writes, for δ at the logits."""
    passed = [delta]
    for i in range(len(steps) - 2, -1, -1):
        passed.append(
            steps[i + 1].passed_down(passed[-1], ()) * steps[i].activation.slope(written[i])
        )
    return passed[::-1]


def find_chain(model: nn.Module, update: Update, device: torch.device | str | None = None) -> Chain:
    """The chain of `model` with the update's gradients; at least its head."""
    update.validate(model)
    if isinstance(model, nn.Linear):
        return Chain([_step("", model, IDENTITY, update, device)], None)
    return _walk(model, traced(model), update, device)


def first_linear(model: nn.Module, update: Update) -> tuple[Step, bool]:
    """The Linear that takes the model's own input, and whether the model flattens before it."""
    update.validate(model)
    if isinstance(model, nn.Linear):
        return _step("", model, IDENTITY, update), False
    graph = traced(model)
    node = next(node for node in graph.nodes if node.op == "placeholder")
    flattened = False
    while len(node.users) == 1:
        node = next(iter(node.users))
        layer = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(layer, nn.Linear):
            problem = _weight_problem(str(node.target), layer, update)
            if problem:
                raise UnsumError(f"The first layer says nothing: {problem}.")
            return _step(str(node.target), layer, IDENTITY, update), flattened
        if not _passes(node, layer):
            break
        flattened |= _reshapes(node, layer)
    into = _title(node, model)
    raise UnsumError(f"The model's input does not go into a Linear but into {into}; use 'layers'.")


def traced(model: nn.Module) -> fx.Graph:
    """The model's data flow."""
    try:
        return trace(model)
    except Exception:  # tracing runs the user's forward on proxies, which may raise anything
        raise UnsumError(
            f"{type(model).__name__} cannot be traced by torch.fx, so its layers cannot be read; "
            "remove data-dependent control flow from its forward."
        ) from None


def _walk(
    model: nn.Module, graph: fx.Graph, update: Update, device: torch.device | str | None
) -> Chain:
    node: Any = output_source(graph)
    steps: list[Step] = []
    activation: Activation | None = None
    stop, flattened = None, False
    while isinstance(node, fx.Node) and node.op != "placeholder":
        if len(node.users) > 1:
            stop = f"the output of {_title(node, model)} is used more than once"
            break
        layer = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        found = activation_at(node, layer)
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
        raise UnsumError(
            f"Nothing can be peeled: {stop}; peeling starts at a Linear that gives the logits."
        )
    if stop is None and activation is not IDENTITY:
        stop = "an activation stands before the first layer"
    if stop is None and changes_its_input(model):
        stop = "a hook changes the input before the first layer reads it"
    return Chain(steps[::-1], stop, flattened)


def _step(
    name: str,
    module: nn.Linear | nn.Conv2d,
    activation: Activation,
    update: Update,
    device: torch.device | str | None = None,
) -> Step:
    prefix, target = f"{name}." if name else "", device or module.weight.device
    weights = module.weight, update.gradients[f"{prefix}weight"]
    W, grad_W = (tensor.detach().to(target) for tensor in weights)
    biases = module.bias, update.gradients.get(f"{prefix}bias")
    b, grad_b = (None if tensor is None else tensor.detach().to(target) for tensor in biases)
    return Step(name or type(module).__name__, module, activation, W, b, grad_W, grad_b)


def _weight_problem(name: str, layer: nn.Linear | nn.Conv2d, update: Update) -> str | None:
    changed = departure(layer)
    if changed:
        return f"{name!r} {changed}"
    if f"{name}.weight" not in update.gradients:
        return f"the update lacks the gradient of {name!r}"
    if isinstance(layer, nn.Conv2d) and (
        layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    ):
        return (
            f"the convolution {name!r} pads in a way that is not supported (padding_mode zeros and "
            "a number are)"
        )
    return None


def _passes(node: fx.Node, layer: nn.Module | None) -> bool:
    """Whether a node changes no value: reshaping, identity, dropout that is off."""
    if layer is not None and departure(layer):
        return False
    if isinstance(layer, nn.Dropout):
        return not layer.training or layer.p == 0
    if isinstance(layer, (nn.Identity, nn.Flatten, nn.Unflatten)):
        return True
    if node.op == "call_function" and node.target is operator.getitem:
        return bool(node.args[1] == 0)
    return node.op in ("call_function", "call_method") and node.target in _RESHAPES


def _reshapes(node: fx.Node, layer: nn.Module | None) -> bool:
    changes_shape = node.target in _RESHAPES - {"contiguous", "float"}
    return isinstance(layer, nn.Flatten) or (layer is None and changes_shape)


def activation_at(node: fx.Node, layer: nn.Module | None) -> Activation | None:
    settings = [*node.args[1:], *node.kwargs.values()]
    known = node.target in _CALLS and not any(isinstance(one, fx.Node) for one in settings)
    if node.op in ("call_function", "call_method") and known:
        layer = _CALLS[node.target](*node.args[1:], **node.kwargs)
    return None if layer is None else activation_of(layer)


def _title(node: fx.Node, model: nn.Module) -> str:
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        state = " that is on" if isinstance(module, nn.Dropout) else ""
        return f"the layer {str(node.target)!r} ({type(module).__name__}{state})"
    return f"the operation {getattr(node.target, '__name__', node.target)!r}"
