"""The first MLP's gradients without the tokens that were found: those that are left are far fewer
unknowns.

A found token z has δ₂ in the column space of ∇W₂, and δ₁ = (W₂ᵀ δ₂) · act′(W₁ z + b₁) in that of
∇W₁: linear equations for δ₂, whose one solution is known but for its length. Wedderburn's identity
tells that: taken out with its weight, it lowers the rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.engine.found import FoundPoints
from unsum.spans.basis import LayerSpan
from unsum.spans.labels import left_behind
from unsum.spans.roots import Condition

# times as much outside as the solution: what the next best one leaves at least, in squares
_ALONE = 100.0

_AT_ONCE = 16  # tokens whose equations are held at a time
# vectors and turns of inverse iteration: the solution stands out by squares of rounding
_LOWEST, _TURNS = 4, 6
_KNOWN = 10.0  # times the median error of those found: who is known less well stays


def taken_out(
    whole: Condition, W2: Tensor, found: FoundPoints, *, everyone: bool
) -> Condition | None:
    """The condition for the tokens that are missing; None where δ₂ of none that was found is told,
    or nothing is left.

    Who is known less well leaves behind more than its absence makes easier, and stays, unless
    `everyone` is to go.
    """
    here, following = whole.here, whole.next
    h = found.points @ whole.step.W.double().T
    h = h if whole.step.b is None else h + whole.step.b.double()
    a, slopes = whole.step.activation.function(h), whole.step.activation.slope(h)
    sent, told = _sent(here, following, following.columns @ W2.double(), slopes)
    told &= everyone | (found.errors < _KNOWN * found.errors.median())
    if not 0 < int(told.sum()) < min(len(here), len(following)):
        return None
    X, a, sent, errors = found.points[told], a[told], sent[told], found.errors[told]
    sent = sent / _weights(following, a, sent)[:, None]
    first = (sent @ W2.double()) * slopes[told]
    here, following = (
        span.without(delta, read, len(span) - len(X), left_behind(errors, delta, read))
        for span, delta, read in ((here, first, X), (following, sent, a))
    )
    return Condition.of(whole.step, here, following)


def _sent(
    here: LayerSpan, following: LayerSpan, through: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor]:
    """((R, d) δ₂ of every token, of length 1; (R,) whether it is the only one that fits), for
    slopes (R, m)."""
    U = here.columns
    found, told = [], []
    for some in slopes.split(_AT_ONCE):
        M = through * some[:, None]  # (R, N, m) what every direction of the column space sends on
        inside = M @ U.T
        values, vectors = _lowest(M @ M.mT - inside @ inside.mT)
        found.append(vectors[:, :, 0] @ following.columns)
        told.append(values[:, 1] > _ALONE * values[:, 0])
    return torch.cat(found), torch.cat(told)


def _lowest(squares: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest few eigenvalues (R, k) and vectors (R, N, k), by inverse iteration: a GPU takes
    long for all of them."""
    R, N, _ = squares.shape
    diagonal = squares.diagonal(dim1=1, dim2=2)
    least = torch.finfo(squares.dtype).eps * diagonal.sum(1)
    factor = torch.linalg.cholesky_ex(
        squares + torch.diag_embed((8 * least)[:, None].expand_as(diagonal))
    )[0]
    start = torch.randn(
        N, min(_LOWEST, N), generator=torch.Generator().manual_seed(0), dtype=squares.dtype
    )
    vectors = start.to(squares).expand(R, -1, -1)
    for _ in range(_TURNS):
        vectors = torch.linalg.qr(torch.cholesky_solve(vectors, factor).nan_to_num())[0]
    values, inner = torch.linalg.eigh((vectors.mT @ squares @ vectors).cpu())
    return values.to(squares).clamp_min(least[:, None]), vectors @ inner.to(squares)


def _weights(span: LayerSpan, read: Tensor, sent: Tensor) -> Tensor:
    """(R,) aᵀ ∇W⁺ δ, which is 1 for what was sent."""
    read = torch.cat([read, torch.ones_like(read[:, :1])], 1) if span.has_bias else read
    weights: Tensor = (
        (read @ span.rows.T) * torch.linalg.solve(span.core, (sent @ span.columns.T).T).T
    ).sum(1)
    return weights
