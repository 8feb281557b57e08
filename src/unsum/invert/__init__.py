"""Features → images."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from unsum.invert import pixels  # noqa: F401 (registers its inverter)
from unsum.invert.method import INVERTERS, Inverse, load_inverse
from unsum.leak import Leak

__all__ = ["INVERTERS", "Inverse", "invert", "load_inverse"]


def invert(
    model: nn.Module,
    leak: Leak,
    method: str = "learned",
    *,
    inverse: str | Path | Inverse | None = None,
) -> Tensor:
    """Pictures for the features of a leak: (B, 3, h, w) in [0, 1], in the leak's order.

    `inverse` is a trained inverse or its file, a network D with D(f(x)) ≈ x; by default the one
    embedded for the default model.

    Examples:
        >>> import torch, unsum
        >>> from unsum.data import embedded_batch
        >>> from unsum.models import load_model
        >>> loaded, batch = load_model("default", classes=100), embedded_batch(2, image_size=128)
        >>> leak = unsum.separate(
        ...     loaded.model, unsum.capture(loaded.model, batch.images, batch.targets)
        ... )
        >>> unsum.invert(loaded.model, leak).shape
        torch.Size([2, 3, 128, 128])
    """
    return INVERTERS[method](model, leak, inverse=inverse)
