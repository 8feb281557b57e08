"""Features → exact inputs, layer by layer. To read it in the order of the computation:

- `walk`: the whole method, down the layers that `network.chain` finds;
- `dense`: fully connected layers;
- `refine`: rounds through all layers that remove what errors have accumulated;
- `conv`: convolutions;
- `residual`: residual blocks with BatchNorm, down to an inner layer;
- `rgap`, `phong_input`, `cocktail`: published methods, for comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from torch import nn

from unsum.certify.claim import grant_each
from unsum.certify.doubts.network import doubt_network
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.leak import Leak
from unsum.network.chain import Chain, Shape, find_chain
from unsum.peel import cocktail, phong_input, ratio, residual, rgap, walk  # noqa: F401 (registers the methods)
from unsum.peel.method import PEELERS, Peeled, PeeledLayer, checked_shape
from unsum.running.sharing import once
from unsum.separate import answered
from unsum.separate.options import check_options
from unsum.update import Update

__all__ = ["PEELERS", "Peeled", "PeeledLayer", "obstacle", "peel"]
AUTO = "auto"


def peel(
    model: nn.Module,
    update: Update,
    leak: Leak | None = None,
    method: str = AUTO,
    *,
    shape: Shape | None = None,
    seed: int = 0,
    **options: Any,
) -> Peeled:
    """Every sample's input out of the gradients of all layers, as far down as the architecture
    allows.

    A dense layer's gradient is ∇W = δᵀ X: with δ (B, out) known from the layer above, X (B, in) is
    its least-squares solution.

    Args:
        model, update: as in `separate`. The mode (train or eval) that `model` is in is taken for
            the client's.
        leak: the separation to continue; by default the exact solver's, made here.
        method: a name from `unsum list`; `auto` takes R-GAP for models with a single logit and
            `layers` for all others.
        shape: the shape of one input, (channels, height, width), where the attacker knows it.
            Otherwise the layers must tell: a convolution's input is taken for a square, and what
            the model flattens itself for a square picture.
        seed: fixes every random choice.
        options: the method's own.

    Returns:
        A `Peeled` in the leak's order: (B, …) raw inputs of the model, with a certificate per
        sample and figures per layer.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(12, 64), torch.nn.Tanh(), torch.nn.Linear(64, 20)
        ... )
        >>> inputs, labels = torch.randn(3, 12), torch.tensor([4, 4, 1])
        >>> peeled = unsum.peel(model, unsum.capture(model, inputs, labels))
        >>> (
        ...     bool(
        ...         torch.cdist(inputs.double(), peeled.inputs.double()).min(dim=1).values.max()
        ...         < 1e-3
        ...     ),
        ...     peeled.exact,
        ... )
        (True, tensor([True, True, True]))
    """
    if leak is not None and not isinstance(leak, Leak):
        way = (
            f"name the method with method={leak!r}"
            if isinstance(leak, str)
            else f"not of the type {type(leak).__name__}"
        )
        raise UnsumError(f"The third argument of peel is a leak to continue; {way}.")
    shape = checked_shape(shape)
    if method == AUTO:
        chain = find_chain(model, update)
        method = "rgap" if chain.steps[-1].W.shape[0] == 1 else "layers"
    peeler = cast("Callable[..., Peeled]", PEELERS[method])
    check_options(
        method, cast("Callable[..., Any]", peeler), (name for name in options if name != "shape")
    )
    start = time.perf_counter()
    if leak is None and method == "layers":
        leak = answered(model, update, seed=seed)
    peeled = peeler(model, update, leak, shape=shape, seed=seed, **options)
    doubts = doubt_network(Head.of(model, update), method, "cross-entropy")
    if doubts:
        peeled = replace(
            peeled, exact=grant_each(peeled.errors, above=False), notes=[*doubts, *peeled.notes]
        )
    return replace(peeled, seconds=time.perf_counter() - start)


def obstacle(model: nn.Module, update: Update) -> str | None:
    """Why the model's own input cannot be peeled, or None where every layer can be undone; of the
    update only its names count."""
    names = tuple(update.gradients)
    return once(
        "obstacle", (model,), lambda: _obstacle(model, update), names, model.training, of_model=True
    )


def _obstacle(model: nn.Module, update: Update) -> str | None:
    try:
        chain: Chain = find_chain(model, update)
    except UnsumError as reason:
        return str(reason).rstrip(".")
    return chain.stop
