"""What a loss must tell: its gradient and its curvature by the logits, and what it averages over.

Every loss that is a sum over samples has ∇W = Gᵀ F with row i of G a function of sample i's logits
and target alone. A solver needs that function and its derivative; where to start from depends on
its shape, so each kind says which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


class Curvature(ABC):
    """The second derivative of every sample's loss by its logits, at one point: B symmetric C×C
    matrices, never formed."""

    @abstractmethod
    def times(self, V: Tensor) -> Tensor:
        """Each sample's matrix times its own V: (…, B, C) → (…, B, C), or (…, B, n, C) → (…, B, n,
        C)."""

    def along(self, K: Tensor) -> Tensor:
        """(…, B, R, C) how G changes along each direction of T, for K (…, R, C)."""
        of_samples = next(value for value in vars(self).values() if isinstance(value, Tensor))
        return self.times(K.unsqueeze(-3).expand(*of_samples.shape[:-1], -1, -1))

    def squares(self, K: Tensor, G: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(…, B, R) each of Σ_c w_c Q² and Σ_c w_c G Q with Q = `along(K)`: the diagonal of the
        normal matrix is made of them."""
        Q = self.along(K)
        weight = weight[..., None, None, :]
        return (Q.square() * weight).sum(-1), (Q * G[..., None, :] * weight).sum(-1)


@dataclass(frozen=True)
class TracedCurvature(Curvature):
    """By automatic differentiation of the gradient, for losses whose formula is long."""

    logits: Tensor  # (B, C)
    gradient: Callable[[Tensor], Tensor]

    def times(self, V: Tensor) -> Tensor:
        # a Hessian: symmetric, so pulling is pushing
        pull = torch.func.vjp(self.gradient, self.logits)[1]
        place = self.logits.ndim - 1
        each = torch.func.vmap(lambda one: pull(one)[0], in_dims=place, out_dims=place)
        return pull(V)[0] if V.ndim == self.logits.ndim else each(V)


@dataclass(frozen=True)
class Loss(ABC):
    """Base of the losses; `name` is what `Knowledge(loss=…)` and `--loss` call it."""

    many_labels: ClassVar[bool] = False  # whether one sample may carry any number of labels

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
        """(B, C) what the client's rounding does to G, in units of its precision; logits err by
        half of `spread`, ‖f‖‖W_c‖."""
        return self.gradient(logits, Y).abs() + Y + 0.5 * spread

    @abstractmethod
    def response(self, logits: Tensor, Y: Tensor, W: Tensor, row_norms: Tensor) -> Tensor:
        """(B, C) ‖(J W)_c‖: how strongly row c of G answers a change of a sample's features, J
        being the curvature."""

    @property
    def heads(self) -> int:
        """How many heads stand below each other; each has the same classes."""
        return 1

    def divisor(self, Y: Tensor) -> float:
        """What the mean divides the sum over samples by."""
        return float(len(Y))
