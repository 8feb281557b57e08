"""The shape of a layer's input: the user's, or the square picture that fits the layers above."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.gradients import in_eval_mode
from unsum.network.chain import Chain, Shape, Step

_LARGEST_SIDE = 512  # [pixels] of the squares that are tried. Chosen by: arbitrary budget.


def input_shapes(chain: Chain, model: nn.Module, shape: Shape | None) -> list[Shape]:
    """One shape per step, without the batch: (n,) or, for a convolution, (channels, h, w)."""
    if not chain.steps[0].is_conv:
        return [(step.W.shape[1],) for step in chain.steps]
    if shape is None:
        return _guessed(chain)
    read = shapes_read(model, [step.module for step in chain.steps], shape)
    return [read[step.module] for step in chain.steps]


def picture_shape(step: Step, flattens: bool, shape: Shape | None) -> tuple[Shape, list[str]]:
    """The shape of the input of a model whose first layer is the Linear `step`; a note if guessed.

    Where a model flattens its input, n = 3 s² or s² numbers are taken for a square picture.
    """
    n = step.W.shape[1]
    if shape is not None:
        if math.prod(shape) != n:
            holds = f"holds {math.prod(shape)} numbers, but the first layer takes {n}"
            raise UnsumError(f"The shape {shape} {holds}.")
        return shape, []
    if not flattens:
        return (n,), []
    for channels in (3, 1):
        side = math.isqrt(n // channels)
        if channels * side * side == n and side > 1:
            guess = f"Inputs of {n} numbers were taken for pictures of {channels}×{side}×{side}"
            other = "nothing tells their shape; say shape= if it is another."
            return (channels, side, side), [f"{guess}: {other}"]
    flat = "no square picture has as many; say shape= if it is known."
    return (n,), [f"Inputs are given as {n} numbers: {flat}"]


def shapes_read(
    model: nn.Module, layers: Iterable[nn.Module], shape: Shape
) -> dict[nn.Module, Shape]:
    """The shape of what each layer reads of one input of `shape`.

    No statistics are touched, and a batch of one is allowed.
    """
    seen: dict[nn.Module, Shape] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[module] = tuple(inputs[0].shape[1:])

    with ExitStack() as hooks, in_eval_mode(model), torch.no_grad(), takes(shape):
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(note))
        model(torch.zeros(1, *shape).to(next(model.parameters())))
    return seen


@contextmanager
def takes(shape: Shape) -> Iterator[None]:
    """A pass of inputs of `shape` that the model refuses ends in a sentence."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UnsumError(f"The model takes no input of shape {shape}: {reason}.") from error


def _guessed(chain: Chain) -> list[Shape]:
    """The square whose size leads to the first Linear's width.

    Of several, a power of two is preferred, else the largest even one.
    """
    sizes = {side: _sizes(chain, side) for side in range(1, _LARGEST_SIDE + 1)}
    fits = {side: shapes for side, shapes in sizes.items() if shapes}
    if not fits:
        raise UnsumError(
            "No square picture fits the model's layers; say shape=(channels, height, width)."
        )
    return fits[max(fits, key=lambda s: (s & (s - 1) == 0, s % 2 == 0, s))]


def _sizes(chain: Chain, side: int) -> list[Shape] | None:
    """Shapes of all steps' inputs for a square picture, or None where they do not fit together."""
    shapes: list[Shape] = []
    made: Shape = (0, side, side)  # by the convolution before
    for step in chain.steps:
        if not step.is_conv:
            if len(shapes[-1]) == 3 and math.prod(made) != step.W.shape[1]:
                return None
            shapes.append((step.W.shape[1],))
            continue
        shapes.append((step.W.shape[1] * step.geometry["groups"], *made[1:]))
        made = step.output_shape(shapes[-1])
        if made[1] != made[2] or made[1] < 1:
            return None
    return shapes
