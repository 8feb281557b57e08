"""What a declared loss must tell: its gradient by the logits, and what it averages over.

Every loss that is a sum over samples has ∇W = Gᵀ F with row i of G a function of sample i's logits and target alone. A solver
needs that function; where to start from depends on its shape, so each kind says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Kind = Literal["softmax", "separable"]


@dataclass(frozen=True)
class Loss:
    """Base of the losses; `name` is what `Knowledge(loss=…)` and `--loss` call it."""

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def kind(self) -> Kind:
        """`softmax`: G_i = m_i (p_i − ỹ_i), rows sum to zero. `separable`: G_ic = φ(l_ic) − y_ic, class by class."""
        raise NotImplementedError

    def gradient(self, logits: Tensor, Y: Tensor) -> Tensor:
        """(B, C) the derivative of every sample's own loss by its logits, for hard targets Y (B, C) of zeros and ones."""
        raise NotImplementedError

    def divisor(self, Y: Tensor) -> float:
        """What the mean divides the sum over samples by."""
        return float(len(Y))


@dataclass(frozen=True)
class Separable(Loss):
    """G_ic = φ(l_ic) − y_ic, times a constant that goes into the divisor."""

    @property
    def kind(self) -> Kind:
        return "separable"

    def link(self, logits: Tensor) -> Tensor:
        """φ, entry by entry."""
        raise NotImplementedError

    def slope(self, logits: Tensor) -> Tensor:
        """φ′, entry by entry."""
        raise NotImplementedError

    def gradient(self, logits: Tensor, Y: Tensor) -> Tensor:
        return self.link(logits) - Y


@dataclass(frozen=True)
class Softmax(Loss):
    """G_i = m_i (p_i − ỹ_i): cross-entropy whose samples carry weights."""

    @property
    def kind(self) -> Kind:
        return "softmax"

    def class_weights(self, C: int) -> Tensor | None:  # noqa: ARG002 (others need it)
        """(C,) the weight of a sample by its label, where that alone decides; None for equal ones."""
        return None

    def floor(self, C: int) -> Tensor | None:  # noqa: ARG002
        """(C,) what smoothing takes from every row of G, whatever the label; None without smoothing."""
        return None
