"""What the gradient determines of each sample, bounded from below without iterations.

Let the residual r (C, R [+ 1]) change by J δ when T changes by δ. With u_i so that T̃ u_i = e_i,

    (J δ) u_i = α w ∘ (H_i Kᵀ δ_i + Gᵀ (δ u_i)),

where H_i is sample i's curvature by its logits and w weighs the classes. All other samples enter in
the last term alone, which lies in the span of w ∘ Gᵀ. Because ‖r‖ ≥ ‖r u_i‖ / ‖u_i‖, what is left
of H_i Kᵀ δ_i outside that span bounds how much the gradient changes, whatever the other samples do,
and whatever every sample weighs: a weight of its own adds a multiple of G_i. One Cholesky
factorization of R×R for each sample answers every doubt about it. The bound is loose where
features of several samples nearly depend on each other, and says nothing with more samples than
R + 1 or fewer classes than two for each sample; the whole normal equations decide then.
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

    `variance` (B,) is at least that of a row of T, summed over its entries, with the weight of
    every sample and the gradient's scale unknown. `beside` (m, B) is at most the squared change of
    the residual by m further unknowns that T and the weights cannot follow, and `moves` (m, B) the
    squared length of the step by which a row of T follows a unit of them.
    """

    variance: Tensor
    beside: Tensor
    moves: Tensor

    def with_unknown(self, index: int, misfit: float) -> Tensor:
        """(B,) the variance for noise of `misfit` where further unknown `index` is free as well.

        Unknowns are logarithms, of which none is larger than 1.
        """
        added = self.moves[index] / (self.beside[index] + misfit**2)
        return misfit**2 * (self.variance + added).nan_to_num(nan=torch.inf)


def sample_information(here: Linearized, further: Tensor) -> SampleInformation | None:
    """The bounds at a point, for further unknowns that change G (B, C) by `further` (m, B, C)."""
    (B, C), R, heads = here.G.shape, here.at.T.shape[1], here.equation.loss.heads
    inverse = _inverse(here.T) if here.T.shape[1] >= B and heads * B + R <= C else None
    if inverse is None:
        return None
    weight = here.equation.weight
    of_heads = torch.eye(heads).to(here.G).repeat_interleave(C // heads, dim=1)
    others = torch.linalg.qr((of_heads[:, None] * here.G * weight).flatten(0, 1).T).Q
    parts = torch.arange(B, device=weight.device).split(max(1, _HELD // (R * C)))
    bounds = [_of_some(here, part, further[:, part] * weight, others) for part in parts]
    variance, beside, moves = (torch.cat(each, dim=-1) for each in zip(*bounds, strict=True))
    factor = (here.at.alpha / inverse.norm(dim=0)).square()
    return SampleInformation(variance / factor, beside * factor, moves)


def _inverse(T: Tensor) -> Tensor | None:
    """(R [+ 1], B) u with T̃ u = 1; None where features depend on each other."""
    u: Tensor = torch.linalg.pinv(T)
    off = T @ u - torch.eye(len(T), dtype=T.dtype, device=T.device)
    return u if float(off.abs().max()) < _INDEPENDENT else None


def _of_some(here: Linearized, part: Tensor, further: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The bounds of some samples, but for the factors α and 1 / ‖u‖."""
    equation, at = here.equation, here.at
    R = at.T.shape[1]
    curvature = equation.loss.curvature(equation.logits(at.T[part]), equation.targets(at)[part])
    followers = curvature.along(equation.K) * equation.weight  # (n, R, C)
    if equation.floor_free:
        floors = here.floor_change()[part] * equation.weight
        followers = torch.cat([followers, floors[:, None]], dim=1)
    sizes = followers.norm(dim=2).clamp_min(1e-300)
    followers = followers / sizes[..., None]
    inside = followers @ others
    seen = followers @ followers.mT - inside @ inside.mT
    seen.diagonal(dim1=1, dim2=2).sub_(_ROUNDING * seen.shape[1])
    L, failed = torch.linalg.cholesky_ex(seen)
    L = torch.where((failed > 0)[:, None, None], torch.nan, L)
    D = further.permute(1, 2, 0)  # (n, C, m)
    D_inside = others.T @ D
    half = torch.linalg.solve_triangular(L, followers @ D - inside @ D_inside, upper=False)
    squares = D.square().sum(1) * (1 - _ROUNDING)
    left = squares - D_inside.square().sum(1) - half.square().sum(1)
    steps = torch.linalg.solve_triangular(L.mT, half, upper=True) / sizes[..., None]
    one = torch.eye(L.shape[1], dtype=L.dtype, device=L.device).expand_as(L)
    inverse = torch.linalg.solve_triangular(L, one, upper=False) / sizes[:, None]
    variance = inverse[..., :R].square().sum((1, 2)).nan_to_num(nan=torch.inf)
    beside = left.nan_to_num(nan=0.0).clamp_min(0)
    return variance, beside.T, steps[:, :R].square().sum(1).T
