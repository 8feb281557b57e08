"""Place by place: what a 1×1 convolution behind a relu read, where depthwise or grouped
convolutions leave no overlap to use.

The row space of ∇W holds what was read at every place of every photo, B · places vectors, and
relu's zeros tell them (`zeros`). They come without order. What each one sent back orders them:
where everything above works place by place and is averaged, δ = Jᵀ g, with g the gradient at the
logits of its own sample and J known. So every vector tells a g, those with the same g are one
sample's, and what they become has the sample's features as its mean. Which place a vector stood at
stays open.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from unsum.network.chain import traced
from unsum.network.conv_pair import ConvLayer, conv_layer, module_at
from unsum.running.late_scipy import ward_clusters
from unsum.spans.basis import LayerSpan
from unsum.spans.maps.tail import Tail
from unsum.spans.maps.zeros import sparsest
from unsum.update import Update

_RELU: set[Any] = {torch.relu, F.relu, F.relu6, "relu", "relu_"}
_GATE: set[Any] = {operator.mul, torch.mul, "mul"}  # squeeze and excitation: zeros stay zeros
_MOST = 64  # vectors that are looked for: more take minutes, and fewer and fewer are found
_ALIKE = 1e-6  # relative difference of features from which a layer does not work place by place


class PlaceVectors(NamedTuple):
    """What `layer` read, (N, C), without order, and how many starts came to each (N,)."""

    layer: ConvLayer
    source: fx.Node
    vectors: Tensor
    hits: Tensor


class _SentRows(NamedTuple):
    grad_W: Tensor
    grad_b: Tensor | None


def read_places(
    model: nn.Module, update: Update, device: torch.device, seed: int
) -> PlaceVectors | None:
    """Of the 1×1 convolution behind a relu that is nearest to the logits and has room for all
    places; None without one."""
    for node in reversed(list(traced(model).nodes)):
        layer, source = conv_layer(model, node, update), node.args[0] if node.args else None
        if (
            layer is None
            or not layer.placewise
            or not isinstance(source, fx.Node)
            or not _rectified(model, source)
        ):
            continue
        span = LayerSpan.of(_SentRows(layer.grad.detach().to(device).flatten(1), None))
        if span.full or len(span) > _MOST:
            return None  # layers below have as many places, or more
        found = sparsest(span.rows, len(span), torch.Generator().manual_seed(seed))
        return PlaceVectors(layer, source, _lengthened(layer, span, found.y), found.hits)
    return None


def _rectified(model: nn.Module, node: fx.Node) -> bool:
    """Whether a node gives what a relu leaves, perhaps times something."""
    module = module_at(model, node)
    if node.target in _GATE:
        return any(isinstance(arg, fx.Node) and _rectified(model, arg) for arg in node.args)
    return isinstance(module, nn.ReLU | nn.ReLU6) or node.target in _RELU


def _lengthened(layer: ConvLayer, span: LayerSpan, y: Tensor) -> Tensor:
    """Vectors as long as they were: a bias, or BatchNorm's in eval mode, reads a 1 beside each of
    them."""
    if layer.grad_shift is None:
        return y
    reading = torch.linalg.solve(span.core, span.columns @ layer.grad_shift.to(span.columns))
    sums = (y @ span.rows.T) @ reading
    return y / torch.where(sums.abs() > 0, sums, 1.0)[:, None]


def is_placewise(tail: Tail, channels: int) -> bool:
    """Whether features of a map are the mean of the features of its places."""
    like = next(iter(tail.gradients.values()))
    pair = torch.rand(1, channels, 1, 2, generator=torch.Generator().manual_seed(0)).to(like)
    try:
        together, alone = tail.forward(pair)[0], tail.forward(pair.transpose(0, 3).contiguous())[0]
    except RuntimeError:  # a convolution that is larger than the map
        return False
    return bool((together[0] - alone.mean(0)).norm() < _ALIKE * together.norm())


def grouped(tail: Tail, found: PlaceVectors, samples: int) -> Tensor | None:
    """(B, C, 1, places) vectors sample by sample; None where g do not fall into so many groups of
    one size."""
    name, vectors = found.layer.name, found.vectors
    if len(vectors) % samples:
        return None
    delta = torch.linalg.pinv(vectors).T @ found.layer.grad.to(vectors).flatten(1).T  # (N, O)
    J = _jacobian(tail, name, vectors)  # (N, O, C)
    if J.shape[2] > J.shape[1]:
        return None
    g = torch.linalg.lstsq(J, delta[:, :, None]).solution[:, :, 0]
    if samples == 1:
        numbers = torch.ones(len(g), dtype=torch.long)
    else:
        numbers = torch.as_tensor(ward_clusters(g.cpu().numpy(), samples))
    groups = [vectors[(numbers == i).to(vectors.device)] for i in range(1, samples + 1)]
    if any(len(group) != len(vectors) // samples for group in groups):
        return None
    return torch.stack([group.T[:, None] for group in groups])


def _jacobian(tail: Tail, name: str, vectors: Tensor) -> Tensor:
    """(N, O, C) derivatives of each place's own logits by what the convolution writes there."""
    written: list[Tensor] = []

    def keep(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        written.append(output)
        return output.clone()

    hook = tail.module.get_submodule(name).register_forward_hook(keep)
    try:
        with torch.enable_grad():
            logits = tail.module(vectors[:, :, None, None])
            columns = [
                torch.autograd.grad(one.sum(), written[-1], retain_graph=True)[0]
                for one in logits.T
            ]
    finally:
        hook.remove()
    return torch.stack([column.flatten(1) for column in columns], 2)
