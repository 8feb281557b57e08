"""RGLA, one idea per file: `method`, the paper's attack; `objective`, its losses; `loss`, l̂; `adam`, `starts`; `newton`, the same
equation by Newton's method."""

from unsum.separate.rgla import newton  # noqa: F401 (registers it)
from unsum.separate.rgla.loss import estimated_loss
from unsum.separate.rgla.method import rgla

__all__ = ["estimated_loss", "rgla"]
