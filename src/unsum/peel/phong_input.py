"""Phong's ratio at the first layer: one sample's input is any row of that layer's weight gradient over its bias gradient.

For B = 1 the first Linear has ∇W_i = δ_i x and ∇b_i = δ_i, so x = ∇W_i / ∇b_i for every unit i with δ_i ≠ 0; the unit of
the largest |∇b_i| is the most precise. Nothing above the first layer is needed, nor the labels. For B > 1 it is a mean with
unknown weights.
"""

from __future__ import annotations

import torch
from torch import nn

from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.peel.blocks import residual_norm
from unsum.peel.chain import first_linear
from unsum.peel.dense import rounding
from unsum.peel.method import PEELERS, Peeled, PeeledLayer
from unsum.peel.shapes import picture_shape
from unsum.update import Update


@PEELERS.register(
    "phong-input",
    summary="one sample's input by the ratio of the first layer's gradients (Phong 2017)",
    needs="a first Linear with bias, a batch of one sample",
)
def phong_input(
    model: nn.Module, update: Update, leak: Leak | None, *, shape: tuple[int, ...] | None, seed: int
) -> Peeled:
    """The ratio, exact if the whole gradient turns out to be of rank one; uses no randomness."""
    step, flattens = first_linear(model, update)
    if step.grad_b is None or not bool(step.grad_b.any()):
        raise UnsumError(f"'phong-input' needs a bias gradient of the first layer {step.name!r}; use 'layers'.")
    grad_b = step.grad_b.double()
    row = int(grad_b.abs().argmax())
    x = (step.grad_W[row].double() / grad_b[row])[None]
    size = float(step.grad_W.double().norm())
    residual = residual_norm(step.grad_W, grad_b[None], x) / size
    rank_one = residual < rounding(step.grad_W.dtype)
    notes = [] if rank_one else [f"{residual:.1%} of the gradient is not explained by one sample; use 'layers'."]
    error = residual if rank_one else torch.inf
    layer = PeeledLayer(step.name, error, residual, x.numel(), step.grad_W.numel())
    errors = torch.full((1,), error, dtype=torch.float64, device=x.device)
    inputs = x.view(1, *picture_shape(step, flattens, shape))
    return Peeled("phong-input", inputs, errors, errors < torch.inf, True, [layer], notes)
