"""Losses of the softmax: cross-entropy, of one head or of several, with class weights and
smoothing, and the focal loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.losses.loss import Curvature, Loss


@dataclass(frozen=True)
class Softmax(Loss):
    """G_i = m_i (p_i − ỹ_i): cross-entropy whose samples may carry weights; rows of G sum to
    zero."""

    def mass(self, logits: Tensor, Y: Tensor) -> Tensor:  # noqa: ARG002
        """(B,) m, how much each sample counts."""
        return torch.ones_like(logits[..., 0])

    def probabilities(self, logits: Tensor) -> Tensor:
        """(…, B, C) P."""
        return torch.softmax(logits, dim=-1)

    def response(self, logits: Tensor, Y: Tensor, W: Tensor, row_norms: Tensor) -> Tensor:
        """m P_c ‖W_c − Σ_k p̄_k W_k‖, with the batch's mean p̄: rows share what they answer
        alike."""
        P = torch.softmax(logits, dim=-1)
        mean = P.mean(-2, keepdim=True).to(W.dtype) @ W
        squares = row_norms.square() - 2 * (mean @ W.T).double() + (mean @ mean.mT).double()
        return self.mass(logits, Y)[..., None] * P * squares.clamp_min(0).sqrt()

    def class_weights(self, C: int) -> Tensor | None:  # noqa: ARG002 (others need it)
        """(C,) the weight of a sample by its label, where that alone decides; None for equal
        ones."""
        return None

    def floor(self, C: int) -> Tensor | None:  # noqa: ARG002
        """(C,) what smoothing takes from every row of G, whatever the label; None without
        smoothing."""
        return None


@dataclass(frozen=True)
class CrossEntropy(Softmax):
    """As `torch.nn.CrossEntropyLoss()`, with whole or soft targets: G = P − Y, mean over
    samples."""

    name = "cross-entropy"

    def gradient(self, logits: Tensor, Y: Tensor) -> Tensor:
        return self.probabilities(logits) - Y

    def curvature(self, logits: Tensor, Y: Tensor) -> Curvature:  # noqa: ARG002 (it does not depend on them)
        return SoftmaxCurvature(torch.softmax(logits, dim=-1))

    def rounding(self, logits: Tensor, Y: Tensor, spread: Tensor) -> Tensor:
        """P errs in proportion to itself, however small; P − Y by the rounding of 1 where Y is
        1."""
        P = self.probabilities(logits)
        return ((P * (1 + 0.5 * spread)).square() + Y.square()).sqrt()


@dataclass(frozen=True)
class SoftmaxCurvature(Curvature):
    """diag(m) (diag(p) − p pᵀ), row by row of P, head by head; `mass` (B,) weighs samples, 1 by
    default."""

    P: Tensor
    mass: Tensor | None = None
    heads: int = 1

    def times(self, V: Tensor) -> Tensor:
        P = self.P if V.ndim == self.P.ndim else self.P[..., None, :]
        if self.heads > 1:
            P, V = P.unflatten(-1, (self.heads, -1)), V.unflatten(-1, (self.heads, -1))
            return (P * (V - (P * V).sum(-1, keepdim=True))).flatten(-2)
        moved = P * (V - (P * V).sum(-1, keepdim=True))
        if self.mass is None:
            return moved
        return moved * (
            self.mass[..., None] if V.ndim == self.P.ndim else self.mass[..., None, None]
        )

    def squares(self, K: Tensor, G: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """In closed form of one head, without the (B, R, C) products."""
        if self.heads > 1:
            return super().squares(K, G, weight)
        mass = torch.ones_like(self.P[..., :1]) if self.mass is None else self.mass[..., None]
        mean, P = self.P @ K.mT, self.P * mass
        spread = P.square() * weight[..., None, :]
        own = (
            spread @ K.mT.square()
            - 2 * mean * (spread @ K.mT)
            + mean.square() * spread.sum(-1, keepdim=True)
        )
        mixed = G * weight[..., None, :] * P
        return own, mixed @ K.mT - mean * mixed.sum(-1, keepdim=True)


@dataclass(frozen=True)
class StackedCrossEntropy(CrossEntropy):
    """Cross-entropy of one batch under several heads: logits and targets are (B, n·C), with a
    softmax over each head's own C.

    A client that trains on the same batch in n rounds sends n gradients. With the heads W_1 … W_n
    below each other they are one gradient of n·C rows, and whatever is known about one equation
    holds for it.
    """

    rounds: int = 1

    @property
    def heads(self) -> int:
        return self.rounds

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.unflatten(-1, (self.rounds, -1)), dim=-1).flatten(-2)

    def curvature(self, logits: Tensor, Y: Tensor) -> Curvature:  # noqa: ARG002 (it does not depend on them)
        return SoftmaxCurvature(self.probabilities(logits), heads=self.rounds)

    def response(self, logits: Tensor, Y: Tensor, W: Tensor, row_norms: Tensor) -> Tensor:
        blocks = zip(
            *(
                part.chunk(self.rounds, dim)
                for part, dim in ((logits, 1), (Y, 1), (W, 0), (row_norms, 0))
            ),
            strict=True,
        )
        return torch.cat(
            [super(StackedCrossEntropy, self).response(*block) for block in blocks], dim=1
        )


@dataclass(frozen=True, eq=False)
class WeightedCrossEntropy(Softmax):
    """As `torch.nn.CrossEntropyLoss(weight, label_smoothing=smoothing)`, and as PyTorch defines its
    mean.

    ℓ = −(1 − ε) w_y log p_y − ε/C Σ_c w_c log p_c, summed over samples and divided by Σ_i w_{y_i}.
    Its gradient is (1 − ε) w_y (p − e_y) + ε (w̄ p − w/C) with w̄ = mean of w: rows still sum to
    zero.
    """

    weight: Tensor
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.weight.ndim != 1 or not bool((self.weight > 0).all()):
            raise UnsumError("Class weights must be a (C,) tensor of positive numbers.")
        if not 0 <= self.smoothing < 1:
            raise UnsumError(
                f"Label smoothing needs an epsilon of at least 0 and below 1, not {self.smoothing}."
            )

    @property
    def name(self) -> str:
        return "weighted" if self.smoothing == 0 else f"weighted, smoothing {self.smoothing:g}"

    def gradient(self, logits: Tensor, Y: Tensor) -> Tensor:
        w = self.weight.to(logits)
        p = torch.softmax(logits, dim=-1)
        hard = (Y @ w)[..., None] * (p - Y)
        return (1 - self.smoothing) * hard + self.smoothing * (w.mean() * p - w / len(w))

    def curvature(self, logits: Tensor, Y: Tensor) -> Curvature:
        return SoftmaxCurvature(torch.softmax(logits, dim=-1), self.mass(logits, Y))

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


@dataclass(frozen=True)
class Focal(Softmax):
    """Focal loss on softmax probabilities, ℓ = −(1 − p_y)^γ log p_y (Lin et al., 2017), mean over
    samples, no class weights.

    ∂ℓ/∂l = κ(p_y) (p − e_y) with κ(p) = (1 − p)^γ − γ p (1 − p)^{γ−1} log p: cross-entropy with a
    weight that depends on how well the sample is predicted.
    """

    gamma: float = 2.0

    def __post_init__(self) -> None:
        if not self.gamma >= 1:
            raise UnsumError(f"The focal loss needs a gamma of at least 1, not {self.gamma}.")

    @property
    def name(self) -> str:
        return f"focal:{self.gamma:g}"

    def gradient(self, logits: Tensor, Y: Tensor) -> Tensor:
        return self.mass(logits, Y)[..., None] * (torch.softmax(logits, dim=-1) - Y)

    def mass(self, logits: Tensor, Y: Tensor) -> Tensor:
        """κ(p_y)."""
        log_y = (torch.log_softmax(logits, dim=-1) * Y).sum(-1)
        p, rest = log_y.exp(), -torch.expm1(log_y)
        return rest**self.gamma - self.gamma * p * rest ** (self.gamma - 1) * log_y
