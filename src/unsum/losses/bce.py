"""Binary cross-entropy with logits, for samples of several labels: G = σ(L) − Y, mean over samples and classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.losses.loss import Separable


@dataclass(frozen=True)
class BinaryCrossEntropy(Separable):
    """As `torch.nn.BCEWithLogitsLoss()`."""

    @property
    def name(self) -> str:
        return "bce"

    @property
    def many_labels(self) -> bool:
        return True

    def link(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits)

    def slope(self, logits: Tensor) -> Tensor:
        p = torch.sigmoid(logits)
        return p * (1 - p)

    def divisor(self, Y: Tensor) -> float:
        return float(Y.numel())
