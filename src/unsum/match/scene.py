"""What one candidate batch looks like to a regularizer: its pictures, and what the model makes of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Scene:
    """All tensors have the restarts in front and are differentiable, but for `consensus`."""

    pictures: Tensor  # (R, B, c, h, w)
    consensus: Tensor  # (B, c, h, w) mean of the pictures over all restarts, a constant
    features: Tensor | None = None  # (R, B, H) what reaches the head
    norm_gap: Tensor | None = None  # (R,) distance to BatchNorm's running statistics, summed over layers
