"""Focal loss on softmax probabilities, ℓ = −(1 − p_y)^γ log p_y (Lin et al., 2017).

∂ℓ/∂l = κ(p_y) (p − e_y) with κ(p) = (1 − p)^γ − γ p (1 − p)^{γ−1} log p: cross-entropy with a weight that depends on how well the
sample is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.losses.loss import Softmax


@dataclass(frozen=True)
class Focal(Softmax):
    """Mean over samples, no class weights."""

    gamma: float = 2.0

    def __post_init__(self) -> None:
        if not self.gamma >= 1:
            raise UnsumError(f"The focal loss needs a gamma of at least 1, not {self.gamma}.")

    @property
    def name(self) -> str:
        return f"focal:{self.gamma:g}"

    def gradient(self, logits: Tensor, Y: Tensor) -> Tensor:
        return self.mass(logits, Y)[:, None] * (torch.softmax(logits, dim=1) - Y)

    def mass(self, logits: Tensor, Y: Tensor) -> Tensor:
        """κ(p_y)."""
        log_y = (torch.log_softmax(logits, dim=1) * Y).sum(1)
        p, rest = log_y.exp(), -torch.expm1(log_y)
        return rest**self.gamma - self.gamma * p * rest ** (self.gamma - 1) * log_y
