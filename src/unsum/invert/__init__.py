"""Features → images."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from unsum.invert.learned import load_inverse
from unsum.invert.method import INVERTERS, Inverse
from unsum.leak import Leak

__all__ = ["INVERTERS", "Inverse", "invert", "load_inverse"]


def invert(
    model: nn.Module, leak: Leak, method: str = "learned", *, inverse: str | Path | Inverse | None = None
) -> Tensor:
    """Pictures for the features of a leak: (B, 3, h, w) in [0, 1], in the leak's order.

    `inverse` is a trained inverse or its file; by default the one embedded for the default model.
    """
    return INVERTERS[method](model, leak, inverse=inverse)
