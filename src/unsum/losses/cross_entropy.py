"""Cross-entropy of the softmax: G = P − Y, mean over samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.losses.loss import Curvature, Softmax


@dataclass(frozen=True)
class CrossEntropy(Softmax):
    """As `torch.nn.CrossEntropyLoss()`, with whole or soft targets."""

    @property
    def name(self) -> str:
        return "cross-entropy"

    def gradient(self, logits: Tensor, Y: Tensor) -> Tensor:
        return self.probabilities(logits) - Y

    def curvature(self, logits: Tensor, Y: Tensor) -> Curvature:  # noqa: ARG002 (it does not depend on them)
        return SoftmaxCurvature(torch.softmax(logits, dim=1))

    def rounding(self, logits: Tensor, Y: Tensor, spread: Tensor) -> Tensor:
        """P errs in proportion to itself, however small; P − Y by the rounding of 1 where Y is 1."""
        P = self.probabilities(logits)
        return ((P * (1 + 0.5 * spread)).square() + Y.square()).sqrt()


@dataclass(frozen=True)
class SoftmaxCurvature(Curvature):
    """diag(m) (diag(p) − p pᵀ), row by row of P; `mass` (B,) weighs samples, 1 by default."""

    P: Tensor
    mass: Tensor | None = None

    def times(self, V: Tensor) -> Tensor:
        P = self.P if V.ndim == 2 else self.P[:, None, :]
        moved: Tensor = P * (V - (P * V).sum(-1, keepdim=True))
        if self.mass is None:
            return moved
        return moved * self.mass.view(-1, *[1] * (V.ndim - 1))

    def squares(self, K: Tensor, G: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """In closed form, without the (B, R, C) products."""
        mass = torch.ones_like(self.P[:, :1]) if self.mass is None else self.mass[:, None]
        mean, P = self.P @ K.T, self.P * mass
        spread = P.square() * weight
        own = spread @ K.T.square() - 2 * mean * (spread @ K.T) + mean.square() * spread.sum(1, keepdim=True)
        mixed = G * weight * P
        return own, mixed @ K.T - mean * mixed.sum(1, keepdim=True)
