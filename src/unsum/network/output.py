"""Whether what a layer writes is what the model returns: other values are put in its place, and the
output is looked at.

Weights do not tell: a head of zeros gives zeros whatever they are multiplied by. So the layer's
output is replaced by random
numbers; where the model returns these, nothing scales, clips or adds to what the layer writes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unsum.gradients import quiet
from unsum.network.layers import tolerance
from unsum.network.passes import accepted_input, main_tensor, without_trace

# [of logits] of the values that are put in the layer's place, row by row in turn. The first are
# bent by soft caps, which usually are 30 or 50; the second meet clips. Chosen by: arbitrary budget,
# one pass.
_SPREADS = (20.0, 2000.0)


@dataclass(frozen=True)
class OutputCheck:
    """What passes with other values in a layer's place showed. `departs` is why its output is not
    the model's, empty where it
    is; `doubts` are why that is not known for sure, and nothing below it may be claimed."""

    departs: str = ""
    doubts: list[str] = field(default_factory=list)
    # every sample's output less a constant, as log_softmax gives: softmax does not feel it
    shifted: bool = False
    shared: bool = False  # the layer's weight has another part in the output besides
    failed: bool = False  # no pass came to an end


def check_output(model: nn.Module, name: str, layer: nn.Module) -> OutputCheck:
    """Whether the model returns what `layer`, called `name`, writes, in eval mode and in train
    mode.
    """
    x = accepted_input(model)
    if x is None:
        return OutputCheck(
            doubts=[
                f"No input was found that {type(model).__name__} takes, so nobody checked that its "
                f"output is what {name!r} writes, and nothing is claimed; say what one input is as "
                "the model's own attribute: input_shape = (3, 48, 64)."
            ]
        )
    found = _replaced(model, layer, x, train=False)
    if found.departs:
        return found
    trained = _replaced(model, layer, x, train=True)
    if trained.departs and not trained.failed:
        doubt = f"In train mode {trained.departs}, so nothing is claimed"
        return OutputCheck("", [f"{doubt}."], found.shifted, found.shared)
    return OutputCheck("", [], found.shifted or trained.shifted, found.shared)


def writer_of_output(model: nn.Module, kind: type[nn.Module]) -> str | None:
    """The name of the layer of a kind whose output the model returns, found by passes; None where
    there is none.
    """
    x = accepted_input(model)
    if x is None:
        return None
    # layer → numbers a sample that it wrote, in the order of the calls
    called: dict[nn.Module, int] = {}
    layers = {module: name for name, module in model.named_modules() if isinstance(module, kind)}

    def note(module: nn.Module, _inputs: Any, written: Tensor) -> None:
        called.pop(module, None)
        called[module] = written.shape[-1]

    with ExitStack() as hooks, without_trace(model, train=False), torch.no_grad():
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(note))
        returned = main_tensor(model(x))
    widths = () if returned is None else (returned.shape[-1], 1)
    able = [layer for layer, width in reversed(called.items()) if width in widths]
    found = (layer for layer in able if not _replaced(model, layer, x, train=False).departs)
    return next((layers[layer] for layer in found), None)


def _replaced(model: nn.Module, layer: nn.Module, x: Tensor, *, train: bool) -> OutputCheck:
    """A pass with random numbers in the place of what the layer writes."""
    put: list[Tensor] = []
    dependent: list[bool] = []

    def replace(_: nn.Module, inputs: tuple[Any, ...], written: Tensor) -> Tensor:
        dependent.append(any(isinstance(one, Tensor) and one.requires_grad for one in inputs))
        drawn = torch.randn(written.shape, generator=torch.Generator().manual_seed(len(put)))
        rows = drawn.view(-1, written.shape[-1])
        for first, spread in enumerate(_SPREADS):
            rows[first :: len(_SPREADS)] *= spread
        put.append(drawn.to(written))
        return put[-1].clone()  # what comes after it may change it in place

    weight = layer._parameters.get("weight")
    names = {name for name, parameter in model.named_parameters() if parameter is weight}
    hook = layer.register_forward_hook(replace)
    try:
        with without_trace(model, train=train), quiet(model, names), torch.enable_grad():
            returned = main_tensor(model(x))
    except Exception as error:  # the user's own forward
        raised = (
            f"the model raises {type(error).__name__} where other values are in its last layer's "
            "place"
        )
        return OutputCheck(raised, failed=True)
    finally:
        hook.remove()
    departs, shifted = _compared(put, returned)
    shared = any(dependent) or (returned is not None and returned.requires_grad)
    return OutputCheck(departs, shifted=shifted, shared=shared)


def _compared(put: list[Tensor], returned: Tensor | None) -> tuple[str, bool]:
    """Why what was returned is not what was put in, and whether it is less a constant for each
    sample.
    """
    if returned is None:
        return "the model returns no tensor that a loss could be of", False
    if len(put) != 1:
        return f"the last layer is called {len(put)} times in one pass", False
    width = put[0].shape[-1]
    if returned.shape[-1] != width and width > 1:
        return (
            (
                f"the model's output has {returned.shape[-1]} numbers a sample, and its last layer "
                f"writes {width}"
            ),
            False,
        )
    drawn, rows = (tensor.detach().reshape(-1, width).double() for tensor in (put[0], returned))
    # one position of many may be returned
    nearest = drawn[torch.cdist(_centered(rows), _centered(drawn)).argmin(1)]
    within = tolerance(returned.dtype if returned.is_floating_point() else torch.float32)
    apart, sizes = rows - nearest, within * nearest.abs().amax(1)
    if bool((apart.abs().amax(1) <= sizes).all()):
        return "", False
    if width > 1 and bool((_centered(apart).abs().amax(1) <= sizes).all()):
        return "", True
    return (
        (
            "the model's output is not what its last layer writes: something scales, adds to or "
            "bends it"
        ),
        False,
    )


def _centered(rows: Tensor) -> Tensor:
    """Rows less their means; single numbers as they are."""
    return rows - rows.mean(1, keepdim=True) if rows.shape[1] > 1 else rows
