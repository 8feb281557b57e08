"""RGLA, one idea per file: `method`, the paper's attack; `objective`, its losses and l̂; `newton`, the same equation by
Newton's method."""

from unsum.separate.rgla import newton  # noqa: F401 (registers it)
from unsum.separate.rgla.method import rgla
from unsum.separate.rgla.objective import estimated_loss

__all__ = ["estimated_loss", "rgla"]
