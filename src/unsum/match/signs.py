"""How far the signs of candidates' gradients are from signs received, in a form that has a derivative.

v = 1 − mean over entries with ŝ ≠ 0 of ŝ tanh(g / σ)        ∂v/∂g = −ŝ (1 − tanh²(g / σ)) / (σ n)

with σ the size (root mean square) of each tensor of g, taken as a constant. Every sign counts alike, where the cosine with a
vector of signs would ask for a gradient whose entries are all of one size, which no picture has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.match.objective import Objective, Target


@dataclass(frozen=True)
class Signs(Objective):
    """`sharpness` divides σ: the larger, the nearer to sign(g) itself, and the flatter away from zero."""

    sharpness: float = 64.0

    def against(self, sent: Sequence[Tensor], restarts: int = 1) -> Target:
        return SignTarget(self, sent, restarts)


class SignTarget(Target):
    def __init__(self, objective: Signs, sent: Sequence[Tensor], restarts: int) -> None:
        super().__init__(objective, [tensor.sign() for tensor in sent], restarts)
        self.count = self.sent.count_nonzero().clamp_min(1)
        self.sharpness = objective.sharpness

    @torch.no_grad()
    def __call__(self, found: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        values, pulls = found[0].new_ones(len(found[0])), []
        for tensor, signs in zip(found, self.sent.split(self._sizes), strict=True):
            flat = tensor.detach().flatten(1)
            size = flat.square().mean(1, keepdim=True).sqrt().clamp_min(1e-30) / self.sharpness
            soft = (flat / size).tanh()
            values = values - soft @ signs / self.count
            pulls.append((-signs * (1 - soft.square()) / (size * self.count)).view_as(tensor))
        return values, pulls
