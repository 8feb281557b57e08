"""RGLA, one idea per file: `reference`, the paper's losses in plain autograd; `objective`, the same
fast and for many batches, and l̂; `method`, the attack; `newton`, the same equation by Newton's
method."""

from unsum.separate.rgla import newton  # noqa: F401 (registers it)
from unsum.separate.rgla.method import rgla
from unsum.separate.rgla.objective import estimated_loss

__all__ = ["estimated_loss", "rgla"]
