"""Losses that treat every class by itself, G_ic = φ(l_ic) − y_ic: binary cross-entropy and the
squared error."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.losses.loss import Curvature, Loss


@dataclass(frozen=True)
class Separable(Loss):
    """G_ic = φ(l_ic) − y_ic, class by class, times a constant that goes into the divisor."""

    @abstractmethod
    def link(self, logits: Tensor) -> Tensor:
        """φ, entry by entry."""

    @abstractmethod
    def slope(self, logits: Tensor) -> Tensor:
        """φ′, entry by entry."""

    def gradient(self, logits: Tensor, Y: Tensor) -> Tensor:
        return self.link(logits) - Y

    def curvature(self, logits: Tensor, Y: Tensor) -> Curvature:  # noqa: ARG002 (targets are constants)
        return DiagonalCurvature(self.slope(logits))

    def response(self, logits: Tensor, Y: Tensor, W: Tensor, row_norms: Tensor) -> Tensor:  # noqa: ARG002
        return self.slope(logits).abs() * row_norms


@dataclass(frozen=True)
class DiagonalCurvature(Curvature):
    """diag(slope), for losses that treat every class by itself."""

    slope: Tensor  # (B, C)

    def times(self, V: Tensor) -> Tensor:
        return V * (self.slope if V.ndim == self.slope.ndim else self.slope[..., None, :])


@dataclass(frozen=True)
class BinaryCrossEntropy(Separable):
    """As `torch.nn.BCEWithLogitsLoss()`, for samples of several labels: G = σ(L) − Y, mean over
    samples and classes."""

    name = "bce"
    many_labels = True

    def link(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits)

    def slope(self, logits: Tensor) -> Tensor:
        p = torch.sigmoid(logits)
        return p * (1 - p)

    def divisor(self, Y: Tensor) -> float:
        return float(Y.numel())


@dataclass(frozen=True)
class SquaredError(Separable):
    """As `torch.nn.MSELoss()` on logits and one-hot rows: G = L − Y, times 2, mean over samples and
    classes.

    It is quadratic, so the gradient holds only second moments of the features: M = Σ f fᵀ and, from
    the label rows, the sum of the features of every label. Samples with a label of their own are
    determined, and so are two of one label; among three or more every rotation that keeps their sum
    gives the same gradient.
    """

    name = "mse"

    def link(self, logits: Tensor) -> Tensor:
        return logits

    def slope(self, logits: Tensor) -> Tensor:
        return torch.ones_like(logits)

    def divisor(self, Y: Tensor) -> float:
        return Y.numel() / 2
