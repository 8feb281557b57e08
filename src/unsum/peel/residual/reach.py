"""How far the walk will go for a model and a batch size: by counting equations and unknowns,
without any gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from unsum.errors import UnsumError
from unsum.network.residual_blocks import block_names, convolutions
from unsum.network.shapes import shapes_read
from unsum.network.unit import taps

_KNOWN = 0.5  # share of a ReLU's outputs that are positive, and thereby known
# Equations for each unknown from which gradients and outputs together were found to determine a
# block's input: ResNet-18 for 32² pictures has 1.75 at a batch of 8 (exact) and 1.12 at 16 (a
# quarter of the map stays open).
_ENOUGH = 1.5


@dataclass(frozen=True)
class Depth:
    """One convolution below the start of the walk: whether what it reads will come back, and for
    which batches at most."""

    layer: str
    shape: tuple[int, ...]  # (C, h, w) of one sample
    reached: bool
    most: int  # the largest batch


@dataclass(frozen=True)
class Reach:
    """`depths` in the order of the walk, down to the first layer that is not reached; `deepest` the
    last one that is."""

    start: str
    start_shape: tuple[int, ...]  # (C, h, w) of what it reads
    depths: list[Depth]
    stop: str

    @property
    def deepest(self) -> str:
        return next((depth.layer for depth in reversed(self.depths) if depth.reached), self.start)


def reach(model: nn.Module, batch_size: int, image_size: int) -> Reach:
    """The walk from the input of the model's last residual block, for `batch_size` pictures of
    `image_size`².

    Every convolution above a block's first is undone by its own gradient: k² O equations for B·h·w
    unknowns of a channel. A block's input has the gradients of its first convolution and of its
    shortcut, and their known outputs besides.
    """
    names = block_names(model)
    if not names:
        raise UnsumError(
            "The model has no residual blocks of convolutions with BatchNorm, so no walk leads "
            "down from them."
        )
    layers = {name: part for name, part in model.named_modules() if isinstance(part, nn.Conv2d)}
    read = shapes_read(model, layers.values(), (3, image_size, image_size))
    shapes = {name: read[layer] for name, layer in layers.items() if layer in read}
    start = f"{names[-1]}.conv1"
    if start not in shapes:
        raise UnsumError(f"The model does not use {start!r}, so no walk starts there.")
    depths: list[Depth] = []
    for name in reversed(names[:-1]):
        (first, *others), shortcut = convolutions(model, name)
        if any(layer not in shapes for layer in (first, *others)):
            return Reach(start, shapes[start], depths, f"a convolution of {name!r} is not used")
        for layer in reversed(others):
            depths.append(_inside(model, layer, shapes[layer], batch_size))
            if not depths[-1].reached:
                return Reach(start, shapes[start], depths, _stop(depths[-1]))
        depths.append(_entering(model, first, shortcut, shapes, batch_size))
        if not depths[-1].reached:
            return Reach(start, shapes[start], depths, _stop(depths[-1]))
    return Reach(start, shapes[start], depths, "the first residual block is reached")


def _inside(model: nn.Module, layer: str, shape: tuple[int, ...], B: int) -> Depth:
    most = _by_gradients([_convolution(model, layer)], shape)
    return Depth(layer, shape, most >= B, most)


def _entering(
    model: nn.Module, first: str, shortcut: str | None, shapes: dict[str, tuple[int, ...]], B: int
) -> Depth:
    shape = shapes[first]
    layers = [_convolution(model, layer) for layer in (first, shortcut) if layer is not None]
    unknowns = math.prod(shape) * (1.0 if shortcut is not None else 1 - _KNOWN)  # of a sample
    outputs = sum(
        _KNOWN * len(layer.weight) * math.prod(_written(layer, shape)) for layer in layers
    )
    spare = _ENOUGH * unknowns - outputs  # that gradients must add for every sample
    equations = sum(layer.weight.numel() for layer in layers)
    together = math.floor(equations / spare) if spare > 0 else B
    most = max(_by_gradients(layers, shape), together)
    return Depth(first, shape, most >= B, most)


def _by_gradients(layers: list[nn.Conv2d], shape: tuple[int, ...]) -> int:
    """The largest batch for which gradients alone have as many equations as there are unknowns in
    every class of places."""
    strides = {layer.stride[0] for layer in layers}
    step = strides.pop() if len(strides) == 1 else 1
    most = []
    for corner in ((i, j) for i in range(step) for j in range(step)):
        places = math.prod(
            -(-(side - start) // step) for side, start in zip(shape[1:], corner, strict=True)
        )
        equations = sum(len(layer.weight) * _taps(layer, step, corner) for layer in layers)
        if equations or step == 1:
            most.append(equations // max(places, 1))
    return min(most)


def _taps(layer: nn.Conv2d, step: int, corner: tuple[int, int]) -> int:
    return len(taps(layer.kernel_size[0], layer.stride[0], _padding(layer), step, corner))


def _written(layer: nn.Conv2d, shape: tuple[int, ...]) -> list[int]:
    pad, kernel, stride = _padding(layer), layer.kernel_size[0], layer.stride[0]
    return [(side + 2 * pad - kernel) // stride + 1 for side in shape[1:]]


def _padding(layer: nn.Conv2d) -> int:
    return layer.padding[0] if isinstance(layer.padding, tuple) else layer.kernel_size[0] // 2


def _convolution(model: nn.Module, name: str) -> nn.Conv2d:
    layer = model.get_submodule(name)
    if not isinstance(layer, nn.Conv2d) or layer.groups != 1:
        raise UnsumError(f"{name!r} is no plain convolution, so no walk leads through it.")
    return layer


def _stop(depth: Depth) -> str:
    most = (
        f"a batch of at most {depth.most} would go on" if depth.most else "no batch is small enough"
    )
    return (
        f"the gradient of {depth.layer!r} has fewer equations than what it read has entries; {most}"
    )
