"""Two consecutive convolutions in a model's data flow, and all that stands above them."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import Tensor, fx, nn

from unsum.head import find_head
from unsum.network.activations import Activation
from unsum.network.chain import activation_at, traced
from unsum.network.layers import departure
from unsum.update import Update

NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm2d)


@dataclass(frozen=True)
class ConvLayer:
    """A convolution with its gradient and the norm that follows it, if one does."""

    name: str
    conv: nn.Conv2d
    grad: Tensor
    norm_name: str
    norm: nn.Module | None
    # Of what is added to the convolution's output, by its bias or by its norm in eval mode.
    grad_shift: Tensor | None

    @property
    def batch_norm(self) -> nn.BatchNorm2d | None:
        return self.norm if isinstance(self.norm, nn.BatchNorm2d) else None

    @property
    def placewise(self) -> bool:
        return self.conv.kernel_size == (1, 1)


@dataclass(frozen=True)
class ConvPair:
    """`second` reads activation(norm(first(x))); `source` gives x, and `second` writes `above`."""

    first: ConvLayer
    second: ConvLayer
    activation: Activation
    source: fx.Node
    above: fx.Node


def find_pairs(model: nn.Module, update: Update) -> list[ConvPair]:
    """All pairs whose gradients were sent, the nearest to the logits first."""
    found = [_pair(model, node, update) for node in reversed(list(traced(model).nodes))]
    return [pair for pair in found if pair is not None]


def _pair(model: nn.Module, node: fx.Node, update: Update) -> ConvPair | None:
    """The pair whose second convolution is `node`."""
    second = conv_layer(model, node, update)
    if second is None:
        return None
    below = read_by(model, node)
    activation = None if below is None else activation_at(below, module_at(model, below))
    if below is None or activation is None or len(below.users) > 1:
        return None
    below = read_by(model, below)
    if below is not None and isinstance(module_at(model, below), NORMS) and len(below.users) == 1:
        below = read_by(model, below)
    first = None if below is None else conv_layer(model, below, update)
    if (
        below is None
        or first is None
        or len(below.users) > 1
        or first.placewise
        or not _overlaps(first.conv)
    ):
        return None
    if not second.placewise and not _overlaps(second.conv):
        return None
    source = read_by(model, below)
    return None if source is None else ConvPair(first, second, activation, source, node)


def _overlaps(conv: nn.Conv2d) -> bool:
    """Whether patches overlap and the first one has zeros of the padding above it and beside it."""
    padded = isinstance(conv.padding, tuple) and all(
        2 * pad == size - 1 > 0 for pad, size in zip(conv.padding, conv.kernel_size, strict=True)
    )
    return padded and conv.padding_mode == "zeros" and conv.dilation == (1, 1)


def conv_layer(model: nn.Module, node: fx.Node, update: Update) -> ConvLayer | None:
    """A plain convolution of stride 1 whose gradient was sent."""
    conv, grad = module_at(model, node), update.gradients.get(f"{node.target}.weight")
    if not isinstance(conv, nn.Conv2d) or grad is None or conv.stride != (1, 1) or conv.groups != 1:
        return None
    if departure(conv):
        return None
    after = next(iter(node.users), None)
    norm = None if after is None or len(node.users) > 1 else module_at(model, after)
    if after is None or not isinstance(norm, NORMS):
        grad_bias = update.gradients.get(f"{node.target}.bias")
        return ConvLayer(str(node.target), conv, grad, "", None, grad_bias)
    if departure(norm):
        return None
    shift = None
    if isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None:
        shift = update.gradients.get(f"{after.target}.bias")
        gain = 1 if norm.weight is None else norm.weight.detach()
        scale = (norm.running_var + norm.eps).rsqrt() * gain
        shift = None if shift is None else shift.double() * scale.double().to(shift.device)
    return ConvLayer(str(node.target), conv, grad, str(after.target), norm, shift)


def module_at(model: nn.Module, node: fx.Node) -> nn.Module | None:
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def read_by(model: nn.Module, node: fx.Node) -> fx.Node | None:
    """What a node reads, past what changes nothing."""
    below = node.args[0] if node.args else None
    while isinstance(below, fx.Node) and len(below.users) == 1:
        if not isinstance(module_at(model, below), nn.Identity):
            break
        below = below.args[0]
    return below if isinstance(below, fx.Node) else None


def tail_above(model: nn.Module, source: fx.Node, *given: fx.Node) -> fx.GraphModule | None:
    """The logits as a function, in float64, of the values of `source` and of other `given` nodes.

    None where they depend on more.
    """
    name = find_head(model)[0]
    known = (source, *given)
    called = (node for node in source.graph.nodes if node.op == "call_module")
    head = next((node for node in called if node.target == name), None)
    needed = set() if head is None else _between(known, head)
    if head is None or any(node.op == "placeholder" for node in needed):
        return None
    tail = fx.Graph()
    copied = {node: tail.placeholder(f"given{i}") for i, node in enumerate(known)}
    for node in source.graph.nodes:
        if node in needed:
            copied[node] = tail.node_copy(node, lambda other: copied[other])
    tail.output(copied[head])
    whole: fx.GraphModule = copy.deepcopy(fx.GraphModule(model, tail)).double()
    return whole


def _between(known: tuple[fx.Node, ...], head: fx.Node) -> set[fx.Node]:
    """All nodes besides the `known` ones that `head` depends on, the model's input included."""
    needed: set[fx.Node] = set()
    waiting = [head]
    while waiting:
        node = waiting.pop()
        if node not in known and node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed
