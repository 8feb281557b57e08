"""What the gradient determines of each sample, bounded from below without iterations.

Let the residual r (C, R [+ 1]) change by J δ when T changes by δ. With u_i so that T̃ u_i = e_i,

    (J δ) u_i = α w ∘ (H_i Kᵀ δ_i + Gᵀ (δ u_i)),

where H_i is sample i's curvature by its logits and w weighs the classes. All other samples enter in
the last term alone, which lies in the span of w ∘ Gᵀ. Because ‖r‖ ≥ ‖r u_i‖ / ‖u_i‖, what is left
of H_i Kᵀ δ_i outside that span bounds how much the gradient changes, whatever the other samples do,
and whatever every sample weighs: a weight of its own adds a multiple of G_i. One Cholesky
factorization of R×R for each sample answers every doubt about it. The bound is loose where
features of several samples nearly depend on each other, and says nothing with more samples than
R + 1 or fewer classes than two for each sample; the whole normal equations decide then. As
everywhere, many gradients may stand in front of all dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.equation.equation import Linearized

# [1] of a squared length that rounding may leave where nothing is left.
# Chosen by: float64's 1e-16 times a few hundred terms, on the safe side.
_ROUNDING = 1e-12
# [1] largest entry of T̃ u − 1 where the samples' features are independent.
# Chosen by: arbitrary budget; it changes a bound by as much.
_INDEPENDENT = 1e-6
# [numbers] of the largest array: 64 MiB. Chosen by: arbitrary budget.
_HELD = 1 << 23


@dataclass(frozen=True)
class SampleInformation:
    """Bounds of B samples for noise of 1, on the side of doubt.

    `variance` (…, B) is at least that of a row of T, summed over its entries, with the weight of
    every sample and the gradient's scale unknown; inf without a bound. `beside` (…, m, B) is at
    most the squared change of the residual by m further unknowns that T and the weights cannot
    follow, and `moves` (…, m, B) the squared length of the step by which a row of T follows a unit
    of them.
    """

    variance: Tensor
    beside: Tensor
    moves: Tensor

    def variance_with(self, unknown: int | None, misfit: float | Tensor) -> Tensor:
        """(…, B) the variance for noise of `misfit` (…) where a further unknown is free as well.

        Unknowns are logarithms, of which none is larger than 1.
        """
        square = torch.as_tensor(misfit).square()[..., None]
        if unknown is None:
            return square * self.variance
        added = self.moves[..., unknown, :] / (self.beside[..., unknown, :] + square)
        return square * (self.variance + added).nan_to_num(nan=torch.inf)

    def error_at_most(self, unknown: int | None, misfit: Tensor, cost: Tensor) -> Tensor:
        """(…, B) how far a row of T may be off, as far as a further unknown and free weights
        explain.

        That is a deviation, or the step by which T follows what the answer leaves of the gradient.
        The step is no longer than that residual, of the square `cost` (…), times the
        pseudo-inverse's rows, whose squares sum to the variance.
        """
        steps = (cost.sqrt() / misfit).clamp_min(1.0)[..., None]
        return self.variance_with(unknown, misfit).sqrt() * steps


def sample_information(here: Linearized, further: Tensor) -> SampleInformation:
    """The bounds at points, for unknowns that change G (…, B, C) by `further` (…, m, B, C)."""
    equation, weight = here.equation, here.equation.weight[..., None, :]
    (B, C), R, heads = here.G.shape[-2:], here.at.T.shape[-1], equation.loss.heads
    if heads * B + R > C or here.T.shape[-1] < B:
        nothing = torch.zeros_like(further[..., 0])
        return SampleInformation(torch.full_like(here.at.T[..., 0], torch.inf), nothing, nothing)
    inverse = torch.linalg.pinv(here.T)
    off = (here.T @ inverse - torch.eye(B).to(inverse)).abs().amax((-2, -1))
    of_heads = torch.eye(heads).to(here.G).repeat_interleave(C // heads, dim=1)
    own = (of_heads[:, None] * (here.G * weight).unsqueeze(-3)).flatten(-3, -2)
    others = torch.linalg.qr(own.mT).Q  # (…, C, heads · B)
    held = max(1, _HELD // (here.at.T[..., :1, :].numel() * C))
    parts = torch.arange(B, device=weight.device).split(held)
    further = further * weight.unsqueeze(-3)
    bounds = [_of_some(here, part, further[..., part, :], others) for part in parts]
    variance, beside, moves = (torch.cat(each, dim=-1) for each in zip(*bounds, strict=True))
    factor = (here.at.alpha / inverse.norm(dim=-2)).square()
    factor = factor.where(off[..., None] < _INDEPENDENT, 0.0)
    return SampleInformation(variance / factor, beside * factor.unsqueeze(-2), moves)


def _of_some(
    here: Linearized,
    part: Tensor,
    further: Tensor,
    others: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The bounds of some samples, but for the factors α and 1 / ‖u‖."""
    equation, at = here.equation, here.at
    T, Y = at.T[..., part, :], equation.targets(at)[..., part, :]
    weight = equation.weight[..., None, None, :]
    followers = equation.loss.curvature(equation.logits(T), Y).along(equation.K) * weight
    if equation.floor_free:
        floors = here.floor_change()[..., part, None, :] * weight
        followers = torch.cat([followers, floors], dim=-2)
    sizes = followers.norm(dim=-1).clamp_min(1e-300)
    followers = followers / sizes[..., None]  # (…, n, R [+ 1], C)
    inside = (followers.flatten(-3, -2) @ others).unflatten(-2, followers.shape[-3:-1])
    seen = followers @ followers.mT - inside @ inside.mT
    seen.diagonal(dim1=-2, dim2=-1).sub_(_ROUNDING * seen.shape[-1])
    L, failed = torch.linalg.cholesky_ex(seen)
    L = torch.where((failed > 0)[..., None, None], torch.nan, L)
    D = further.transpose(-3, -2)  # (…, n, m, C)
    D_inside = (D.flatten(-3, -2) @ others).unflatten(-2, D.shape[-3:-1])
    right = followers @ D.mT - inside @ D_inside.mT
    half = torch.linalg.solve_triangular(L, right, upper=False)
    squares = D.square().sum(-1) * (1 - _ROUNDING)
    left = squares - D_inside.square().sum(-1) - half.square().sum(-2)
    steps = torch.linalg.solve_triangular(L.mT, half, upper=True) / sizes[..., None]
    one = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
    inverse = torch.linalg.solve_triangular(L, one, upper=False) / sizes[..., None, :]
    R = T.shape[-1]
    variance = inverse[..., :R].square().sum((-2, -1)).nan_to_num(nan=torch.inf)
    beside = left.nan_to_num(nan=0.0).clamp_min(0)
    return variance, beside.mT, steps[..., :R, :].square().sum(-2).mT
