"""What an inverter is: from separated features to pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from unsum.leak import Leak
from unsum.registry import Registry


class Inverter(Protocol):
    """Returns (B, 3, h, w) images in [0, 1], in the order of the leak's features."""

    def __call__(self, model: nn.Module, leak: Leak, *, inverse: str | Path | None) -> Tensor: ...


INVERTERS: Registry[Inverter] = Registry("inverter")
