"""iLRG: how often each class occurs, from one linear system.

The ratio e_c = ∇W_c/∇b_c of a row and its bias is about the mean feature vector of class c, so p̂_c
= softmax(W e_c + b) is about what the model predicts for its samples. With n_c samples of class c,
B ∇b = Σ_i p_i − n becomes C + 1 equations in C unknowns,

    Σ_c n_c = B        Σ_c n_c p̂_c[j] − n_j = B ∇b_j   for every class j

solved by the pseudo-inverse, clipped at zero and rounded. Where the rounded counts do not add up to
B, those that rounding changed most give way.

A class that occurs about as often as it is predicted has ∇b_c ≈ 0: its ratio is anything, its p̂_c
one class with certainty, and all counts suffer. In a fresh head that happens from B ≈ C on. Where
the solution is far from whole numbers, ratios are drawn towards the one vector that explains all
rows best, e = Σ ∇b_c ∇W_c / Σ ∇b_c², the more the smaller their ∇b_c is,

    e_c = (∇b_c ∇W_c + τ e) / (∇b_c² + τ)        τ = κ² / (B C), the square of what one sample more
                                                 or less changes in ∇b_c

with several κ, and the solution nearest to whole numbers is taken; κ = 0 is as published.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from unsum.labels.method import Clues, RuleNeeds, label_rule
from unsum.running.deadline import out_of_time
from unsum.running.sharing import once

# as published first; the last has one vector for all classes
_KAPPAS = (0.0, 0.25, 0.5, 1.0, 2.0, 1e6)
_WHOLE = 1e-3  # unevenness below which rounding is safe: it is .083 where shares are anything


@label_rule(
    "ilrg",
    summary="counts of every class from a linear system (iLRG)",
    needs=RuleNeeds(batch_size=True, bias=True, scale=True),
)
def ilrg(evidence: Clues) -> Tensor:
    """(B,) labels, each class as often as the system says; solved once for all parts of an
    attack."""
    asked = (evidence.model, evidence.update)
    return once("labels by ilrg", asked, lambda: _counted(evidence), evidence.B)


def _counted(evidence: Clues) -> Tensor:
    head, B = evidence.head, evidence.B
    grad_b = evidence.grad_b
    # ∇W_c Wᵀ: dividing last spares a copy of the gradient
    rows = (head.grad_W.to(head.W) @ head.W.T).double()
    rows = rows / B if head.reduction == "sum" else rows
    bias = torch.zeros_like(grad_b) if head.b is None else head.b.double()
    found: list[tuple[float, Tensor]] = []
    start = time.monotonic()
    for kappa in _KAPPAS:
        # at a thousand classes a solve takes half a second, and nothing can end it
        if found and out_of_time("further weights of 'ilrg'", time.monotonic() - start):
            break
        start = time.monotonic()
        shares = solve_shares((_ratios(rows, grad_b, kappa, B) + bias).softmax(1), grad_b, B)
        found.append((_unevenness(shares), shares))
        if found[0][0] < _WHOLE:
            break
    counts = whole_counts(min(found, key=lambda one: one[0])[1], B)
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def _ratios(rows: Tensor, grad_b: Tensor, kappa: float, B: int) -> Tensor:
    """(C, C) W e_c in row c; a row without any gradient tells nothing."""
    tau = kappa**2 / (B * len(grad_b))
    common = grad_b @ rows / grad_b.square().sum().clamp_min(1e-300)
    ratios = (grad_b[:, None] * rows + tau * common) / (grad_b.square() + tau)[:, None]
    return torch.nan_to_num(ratios, nan=0.0, posinf=0.0, neginf=0.0)


def _unevenness(shares: Tensor) -> float:
    """The mean square of what is missing to whole numbers that a count can be; infinite where there
    are no numbers."""
    apart = float((shares - shares.round().clamp(min=0)).square().mean())
    return apart if math.isfinite(apart) else math.inf


def solve_shares(P: Tensor, grad_b: Tensor, B: int) -> Tensor:
    """(C,) n from the system above, not yet whole, for P (C, C) with p̂_c in row c."""
    equations = torch.cat([torch.ones_like(P[:1]), P.T - torch.eye(len(P)).to(P)])
    values = B * torch.cat([torch.ones_like(grad_b[:1]), grad_b])
    found: Tensor = torch.linalg.pinv(equations) @ values
    return found


def whole_counts(shares: Tensor, B: int) -> Tensor:
    """(C,) the shares rounded to whole numbers ≥ 0 that sum to B: plain rounding wherever that adds
    up.

    >>> whole_counts(torch.tensor([1.9, -0.2, 0.6, 1.4]), 4)
    tensor([2, 0, 1, 1])
    >>> whole_counts(torch.tensor([1.4, 1.3, 0.2]), 3)
    tensor([2, 1, 0])
    """
    shares = shares.clamp(0, B)
    counts = shares.round().long()
    while (excess := int(counts.sum()) - B) != 0:
        # Everybody's turn comes before anybody's second one: whole rounds are taken at once, a
        # forged gradient asks for many.
        able = counts > 0 if excess > 0 else torch.ones_like(counts, dtype=torch.bool)
        whole = min(abs(excess) // int(able.sum()), int(counts[able].min()) if excess > 0 else B)
        if whole:
            counts[able] -= whole if excess > 0 else -whole
            continue
        change = counts - shares
        if excess > 0:
            counts[change.masked_fill(counts == 0, -torch.inf).argmax()] -= 1
        else:
            counts[change.argmin()] += 1
    return counts
