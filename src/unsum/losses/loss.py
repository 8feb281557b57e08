"""What a loss must tell: its gradient and its curvature by the logits, and what it averages over.

Every loss that is a sum over samples has ∇W = Gᵀ F with row i of G a function of sample i's logits and target alone. A solver
needs that function and its derivative; where to start from depends on its shape, so each kind says which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


class Curvature(ABC):
    """The second derivative of every sample's loss by its logits, at one point: B symmetric C×C matrices, never formed."""

    @abstractmethod
    def times(self, V: Tensor) -> Tensor:
        """Each sample's matrix times its own V: (B, C) → (B, C), or (B, n, C) → (B, n, C)."""

    def along(self, K: Tensor) -> Tensor:
        """(B, R, C) how G changes along each direction of T, for K (R, C)."""
        return self.times(K.expand(self._samples, -1, -1))

    def squares(self, K: Tensor, G: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(B, R) each of Σ_c w_c Q² and Σ_c w_c G Q with Q = `along(K)`: the diagonal of the normal matrix is made of them."""
        Q = self.along(K)
        return Q.square() @ weight, (Q * G[:, None, :]) @ weight

    @property
    def _samples(self) -> int:
        found = next(value for value in vars(self).values() if isinstance(value, Tensor))
        return len(found)


@dataclass(frozen=True)
class DiagonalCurvature(Curvature):
    """diag(slope), for losses that treat every class by itself."""

    slope: Tensor  # (B, C)

    def times(self, V: Tensor) -> Tensor:
        return V * (self.slope if V.ndim == 2 else self.slope[:, None, :])


@dataclass(frozen=True)
class TracedCurvature(Curvature):
    """By automatic differentiation of the gradient, for losses whose formula is long."""

    logits: Tensor  # (B, C)
    gradient: Callable[[Tensor], Tensor]

    def times(self, V: Tensor) -> Tensor:
        pull = torch.func.vjp(self.gradient, self.logits)[1]  # a Hessian: symmetric, so pulling is pushing
        if V.ndim == 2:
            flat: Tensor = pull(V)[0]
            return flat
        pulled: Tensor = torch.func.vmap(lambda one: pull(one)[0], in_dims=1, out_dims=1)(V)
        return pulled


@dataclass(frozen=True)
class Loss(ABC):
    """Base of the losses; `name` is what `Knowledge(loss=…)` and `--loss` call it."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def gradient(self, logits: Tensor, Y: Tensor) -> Tensor:
        """(B, C) the derivative of every sample's own loss by its logits, for targets Y (B, C)."""

    def curvature(self, logits: Tensor, Y: Tensor) -> Curvature:
        """The derivative of `gradient`."""
        return TracedCurvature(logits, lambda moved: self.gradient(moved, Y))

    def rounding(self, logits: Tensor, Y: Tensor, spread: Tensor) -> Tensor:
        """(B, C) what the client's rounding does to G, in units of its precision; logits err by half of `spread`, ‖f‖‖W_c‖."""
        return self.gradient(logits, Y).abs() + Y + 0.5 * spread

    @abstractmethod
    def response(self, logits: Tensor, Y: Tensor, W: Tensor, row_norms: Tensor) -> Tensor:
        """(B, C) ‖(J W)_c‖: how strongly row c of G answers a change of a sample's features, J being the curvature."""

    @property
    def heads(self) -> int:
        """How many heads stand below each other; each has the same classes."""
        return 1

    @property
    def many_labels(self) -> bool:
        """Whether one sample may carry any number of labels."""
        return False

    def divisor(self, Y: Tensor) -> float:
        """What the mean divides the sum over samples by."""
        return float(len(Y))


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
class Softmax(Loss):
    """G_i = m_i (p_i − ỹ_i): cross-entropy whose samples may carry weights; rows of G sum to zero."""

    def mass(self, logits: Tensor, Y: Tensor) -> Tensor:  # noqa: ARG002
        """(B,) m, how much each sample counts."""
        return torch.ones_like(logits[:, 0])

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, C) P."""
        return torch.softmax(logits, dim=1)

    def response(self, logits: Tensor, Y: Tensor, W: Tensor, row_norms: Tensor) -> Tensor:
        """m P_c ‖W_c − Σ_k p̄_k W_k‖, with the batch's mean p̄: rows share what they answer alike."""
        P = torch.softmax(logits, dim=1)
        mean = P.mean(0).to(W.dtype) @ W
        squares = row_norms.square() - 2 * (W @ mean).double() + (mean @ mean).double()
        return self.mass(logits, Y)[:, None] * P * squares.clamp_min(0).sqrt()

    def class_weights(self, C: int) -> Tensor | None:  # noqa: ARG002 (others need it)
        """(C,) the weight of a sample by its label, where that alone decides; None for equal ones."""
        return None

    def floor(self, C: int) -> Tensor | None:  # noqa: ARG002
        """(C,) what smoothing takes from every row of G, whatever the label; None without smoothing."""
        return None
