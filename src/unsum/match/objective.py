"""How far the gradients of candidate pictures are from those received, and which way each gradient
should move.

    l2      v = ‖g − ĝ‖²                        ∂v/∂g = 2 (g − ĝ)
    cosine  v = 1 − ⟨g, ĝ⟩ / (‖g‖ ‖ĝ‖)          ∂v/∂g = (⟨g, ĝ⟩ g / ‖g‖² − ĝ) / (‖g‖ ‖ĝ‖)
    signs   v = 1 − mean of ŝ tanh(g / σ)       ∂v/∂g = −ŝ (1 − tanh²(g / σ)) / (σ n)

over all tensors together. The derivative is written out rather than left to autograd: it is one
vector operation in a buffer that is kept, where a recorded graph would hold several copies of all
gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.gradients import TINY, Distance


@dataclass(frozen=True)
class Objective:
    """`masked` looks only where the received gradient is not zero, as pruning leaves it; `relative`
    divides l2 by ‖ĝ‖²."""

    distance: Distance = "l2"
    masked: bool = False
    relative: bool = False

    def against(self, sent: Sequence[Tensor], restarts: int = 1) -> Target:
        return Target(self, sent, restarts)


class Target:
    """The received gradients laid out as one vector, and a buffer of the same length for every
    restart."""

    def __init__(self, objective: Objective, sent: Sequence[Tensor], restarts: int) -> None:
        self.objective = objective
        self.sent = torch.cat([tensor.detach().flatten() for tensor in sent])
        self.mask = (self.sent != 0).to(self.sent) if objective.masked else None
        self.length = self.sent.norm().clamp_min(TINY)
        self._shapes = [tensor.shape for tensor in sent]
        self._sizes = [tensor.numel() for tensor in sent]
        self._buffer = self.sent.new_empty(restarts, len(self.sent))

    @torch.no_grad()
    def __call__(self, found: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """((R,) values, ∂ values / ∂ found) for `found` of shapes (R, …); the buffer is used again
        by the next call."""
        flat = torch.cat([tensor.detach().flatten(1) for tensor in found], dim=1, out=self._buffer)
        if self.mask is not None:
            flat.mul_(self.mask)
        values = self._cosine(flat) if self.objective.distance == "cosine" else self._l2(flat)
        parts = flat.split(self._sizes, dim=1)
        return values, [
            part.view(len(flat), *shape) for part, shape in zip(parts, self._shapes, strict=True)
        ]

    def _l2(self, flat: Tensor) -> Tensor:
        apart = flat.sub_(self.sent)
        values: Tensor = apart[0].dot(apart[0])[None] if len(apart) == 1 else apart.square().sum(1)
        scale = (
            1 / self.length.square() if self.objective.relative else torch.ones_like(self.length)
        )
        apart.mul_(2 * scale)
        return values * scale

    def _cosine(self, flat: Tensor) -> Tensor:
        inner, lengths = flat @ self.sent, flat.norm(dim=1).clamp_min(TINY)
        scale = 1 / (lengths * self.length)
        values: Tensor = 1 - inner * scale
        flat.mul_((inner * scale / lengths.square())[:, None]).addcmul_(
            self.sent, scale[:, None], value=-1
        )
        return values


@dataclass(frozen=True)
class Signs(Objective):
    """How far signs are from the n signs ŝ ≠ 0 received, with σ the size (root mean square) of each
    tensor of g, a constant.

    Every sign counts alike, where the cosine with a vector of signs would ask for a gradient whose
    entries are all of one size, which no picture has. `sharpness` divides σ: the larger, the nearer
    to sign(g) itself, and the flatter away from zero.
    """

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
