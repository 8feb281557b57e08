"""What shape a layer's input has: said by the user, or the one square picture whose size fits the layers above."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.peel.chain import Chain, Step

_LARGEST_SIDE = 512


def input_shapes(chain: Chain, model: nn.Module, shape: tuple[int, ...] | None) -> list[tuple[int, ...]]:
    """One shape per step, without the batch: (n,) for a Linear, (channels, h, w) for a convolution."""
    if not chain.steps[0].is_conv:
        return [_flat(step) for step in chain.steps]
    if shape is None:
        return _guessed(chain)
    return _observed(chain, model, shape)


def picture_shape(step: Step, flattens: bool, shape: tuple[int, ...] | None) -> tuple[tuple[int, ...], list[str]]:
    """The shape of the model's input where its first layer is the Linear `step`, and a note where it is a guess.

    A model that flattens its input itself does not tell what it flattens: n = 3 s² or s² is taken for a picture.
    """
    n = step.W.shape[1]
    if shape is not None:
        if math.prod(shape) != n:
            raise UnsumError(f"The shape {shape} holds {math.prod(shape)} numbers, but the first layer takes {n}.")
        return shape, []
    if not flattens:
        return (n,), []
    for channels in (3, 1):
        side = math.isqrt(n // channels)
        if channels * side * side == n and side > 1:
            guess = f"Inputs of {n} numbers were taken for pictures of {channels}×{side}×{side}"
            return (channels, side, side), [f"{guess}: nothing tells their shape; say shape= if it is another."]
    return (n,), [f"Inputs are given as {n} numbers: no square picture has as many; say shape= if it is known."]


def _flat(step: Step) -> tuple[int, ...]:
    return (step.W.shape[1],)


def _observed(chain: Chain, model: nn.Module, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """By sending zeros of the given shape through the model."""
    seen: dict[nn.Module, tuple[int, ...]] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[module] = tuple(inputs[0].shape[1:])

    hooks = [step.module.register_forward_pre_hook(note) for step in chain.steps]
    modes = [(module, module.training) for module in model.modules()]
    like = next(model.parameters())
    try:
        model.eval()  # no statistics are touched, and a batch of one is allowed
        with torch.no_grad():
            model(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))
    except (RuntimeError, ValueError) as error:
        raise UnsumError(f"The model takes no input of shape {shape}: {str(error).splitlines()[0]}.") from error
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    return [seen[step.module] for step in chain.steps]


def _guessed(chain: Chain) -> list[tuple[int, ...]]:
    """The square whose size leads to the first Linear's width; of several, a power of two, else the largest even one."""
    fits = [side for side in range(1, _LARGEST_SIDE + 1) if _sizes(chain, side)]
    if not fits:
        raise UnsumError("No square picture fits the model's layers; say shape=(channels, height, width).")
    side = max(fits, key=lambda s: (s & (s - 1) == 0, s % 2 == 0, s))
    shapes = _sizes(chain, side)
    assert shapes is not None
    return shapes


def _sizes(chain: Chain, side: int) -> list[tuple[int, ...]] | None:
    """Shapes of all steps' inputs for a square picture, or None where they do not fit together."""
    shapes: list[tuple[int, ...]] = []
    height = side
    for step in chain.steps:
        if not isinstance(step.module, nn.Conv2d):
            conv_above = bool(shapes) and len(shapes[-1]) == 3
            if conv_above and chain.steps[len(shapes) - 1].W.shape[0] * height * height != step.W.shape[1]:
                return None
            shapes.append(_flat(step))
            continue
        paddings = step.module.padding
        assert not isinstance(paddings, str)  # refused by the chain
        channels = step.W.shape[1] * step.module.groups
        shapes.append((channels, height, height))
        heights = {
            (height + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for pad, dilation, kernel, stride in zip(
                paddings, step.module.dilation, step.module.kernel_size, step.module.stride, strict=True
            )
        }
        if len(heights) > 1 or min(heights) < 1:
            return None
        height = heights.pop()
    return shapes
