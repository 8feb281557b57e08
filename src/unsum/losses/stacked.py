"""Cross-entropy of one batch under several heads: their classes side by side, with a softmax over each head's own.

A client that trains on the same batch in n rounds sends n gradients. With the heads W_1 … W_n below each other they are one
gradient of n·C rows, and whatever is known about one equation holds for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.losses.cross_entropy import CrossEntropy
from unsum.losses.loss import Curvature


@dataclass(frozen=True)
class StackedCrossEntropy(CrossEntropy):
    """Logits and targets are (B, n·C), head by head."""

    rounds: int = 1

    @property
    def heads(self) -> int:
        return self.rounds

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.unflatten(1, (self.rounds, -1)), dim=2).flatten(1)

    def curvature(self, logits: Tensor, Y: Tensor) -> Curvature:  # noqa: ARG002 (it does not depend on them)
        return StackedCurvature(self.probabilities(logits), self.rounds)

    def response(self, logits: Tensor, Y: Tensor, W: Tensor, row_norms: Tensor) -> Tensor:
        blocks = zip(
            *(part.chunk(self.rounds, dim) for part, dim in ((logits, 1), (Y, 1), (W, 0), (row_norms, 0))), strict=True
        )
        return torch.cat([super(StackedCrossEntropy, self).response(*block) for block in blocks], dim=1)


@dataclass(frozen=True)
class StackedCurvature(Curvature):
    """diag(p) − p pᵀ, head by head."""

    P: Tensor
    rounds: int

    def times(self, V: Tensor) -> Tensor:
        P = self.P if V.ndim == 2 else self.P[:, None, :]
        mean = (P * V).unflatten(-1, (self.rounds, -1)).sum(-1)
        moved: Tensor = P * (V - mean.repeat_interleave(V.shape[-1] // self.rounds, dim=-1))
        return moved
