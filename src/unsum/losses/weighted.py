"""Cross-entropy with class weights and label smoothing, as PyTorch defines their mean.

ℓ = −(1 − ε) w_y log p_y − ε/C Σ_c w_c log p_c, summed over samples and divided by Σ_i w_{y_i}. Its gradient is
(1 − ε) w_y (p − e_y) + ε (w̄ p − w/C) with w̄ = mean of w: rows still sum to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.losses.cross_entropy import SoftmaxCurvature
from unsum.losses.loss import Curvature, Softmax


@dataclass(frozen=True, eq=False)
class WeightedCrossEntropy(Softmax):
    """As `torch.nn.CrossEntropyLoss(weight, label_smoothing=smoothing)`."""

    weight: Tensor
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.weight.ndim != 1 or not bool((self.weight > 0).all()):
            raise UnsumError("Class weights must be a (C,) tensor of positive numbers.")
        if not 0 <= self.smoothing < 1:
            raise UnsumError(f"Label smoothing needs an epsilon of at least 0 and below 1, not {self.smoothing}.")

    @property
    def name(self) -> str:
        return "weighted" if self.smoothing == 0 else f"weighted, smoothing {self.smoothing:g}"

    def gradient(self, logits: Tensor, Y: Tensor) -> Tensor:
        w = self.weight.to(logits)
        p = torch.softmax(logits, dim=1)
        hard = (Y @ w)[:, None] * (p - Y)
        return (1 - self.smoothing) * hard + self.smoothing * (w.mean() * p - w / len(w))

    def curvature(self, logits: Tensor, Y: Tensor) -> Curvature:
        return SoftmaxCurvature(torch.softmax(logits, dim=1), self.mass(logits, Y))

    def mass(self, logits: Tensor, Y: Tensor) -> Tensor:
        w = self.weight.to(logits)
        return (1 - self.smoothing) * (Y @ w) + self.smoothing * w.mean()

    def divisor(self, Y: Tensor) -> float:
        return float((Y @ self.weight.to(Y)).sum())

    def class_weights(self, C: int) -> Tensor | None:
        if len(self.weight) != C:
            raise UnsumError(f"There are {len(self.weight)} class weights but {C} classes.")
        return self.weight.double()

    def floor(self, C: int) -> Tensor | None:
        return self.smoothing * self.weight.double() / C if self.smoothing > 0 else None
