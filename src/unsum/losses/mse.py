"""Squared error of the logits against one-hot targets: G = L − Y, times 2, mean over samples and classes.

It is quadratic, so the gradient holds only second moments of the features: M = Σ f fᵀ and, from the label rows, the sum of the
features of every label. Samples with a label of their own are determined, and so are two of one label; among three or more
every rotation that keeps their sum gives the same gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.losses.loss import Separable


@dataclass(frozen=True)
class SquaredError(Separable):
    """As `torch.nn.MSELoss()` on logits and one-hot rows."""

    @property
    def name(self) -> str:
        return "mse"

    def link(self, logits: Tensor) -> Tensor:
        return logits

    def slope(self, logits: Tensor) -> Tensor:
        return torch.ones_like(logits)

    def divisor(self, Y: Tensor) -> float:
        return Y.numel() / 2
