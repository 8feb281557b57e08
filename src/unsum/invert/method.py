"""What an inverter is: from separated features to pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from unsum.invert.decoder import Decoder
from unsum.leak import Leak
from unsum.registry import Registry


@dataclass(frozen=True)
class Inverse:
    """A trained decoder and its card: the backbone it belongs to, the photos and steps it was trained with, its score."""

    decoder: Decoder
    card: dict[str, Any]

    @property
    def photos(self) -> str:
        """What the attacker needed besides the model, for the list of what was granted."""
        return f"{self.card['photos']:,} of other origin, to train the inverse"


class Inverter(Protocol):
    """Returns (B, 3, h, w) images in [0, 1], in the order of the leak's features."""

    def __call__(self, model: nn.Module, leak: Leak, *, inverse: str | Path | Inverse | None) -> Tensor: ...


INVERTERS: Registry[Inverter] = Registry("inverter")
