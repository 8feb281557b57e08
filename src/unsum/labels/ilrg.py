"""iLRG: how often each class occurs, from one linear system.

The ratio e_c = ∇W_c/∇b_c of a row and its bias is about the mean feature vector of class c, so p̂_c = softmax(W e_c + b) is about
what the model predicts for its samples. With n_c samples of class c, B ∇b = Σ_i p_i − n becomes C + 1 equations in C unknowns,

    Σ_c n_c = B        Σ_c n_c p̂_c[j] − n_j = B ∇b_j   for every class j

solved by the pseudo-inverse, clipped at zero and rounded. Where the rounded counts do not add up to B, those that rounding
changed most give way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.labels.method import Clues, RuleNeeds, label_rule


@label_rule(
    "ilrg",
    summary="counts of every class from a linear system (iLRG)",
    needs=RuleNeeds(batch_size=True, bias=True, scale=True),
)
def ilrg(evidence: Clues) -> Tensor:
    """(B,) labels, each class as often as the system says."""
    head = evidence.head
    assert head.grad_b is not None
    # W e_c = (∇W_c Wᵀ)/∇b_c: dividing last spares a copy of the gradient. A row without any gradient tells nothing.
    logits = (head.grad_W.to(head.W) @ head.W.T).double() / head.grad_b.double()[:, None]
    logits = torch.nan_to_num(logits, nan=0.0, posinf=0.0, neginf=0.0)
    P = (logits if head.b is None else logits + head.b.double()).softmax(1)
    counts = solve_counts(P, evidence.grad_b, evidence.B)
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def solve_counts(P: Tensor, grad_b: Tensor, B: int) -> Tensor:
    """(C,) n from the system above, for P (C, C) with p̂_c in row c."""
    equations = torch.cat([torch.ones_like(P[:1]), P.T - torch.eye(len(P)).to(P)])
    values = B * torch.cat([torch.ones_like(grad_b[:1]), grad_b])
    return whole_counts(torch.linalg.pinv(equations) @ values, B)


def whole_counts(shares: Tensor, B: int) -> Tensor:
    """(C,) the shares rounded to whole numbers ≥ 0 that sum to B: plain rounding wherever that adds up.

    >>> whole_counts(torch.tensor([1.9, -0.2, 0.6, 1.4]), 4)
    tensor([2, 0, 1, 1])
    >>> whole_counts(torch.tensor([1.4, 1.3, 0.2]), 3)
    tensor([2, 1, 0])
    """
    shares = shares.clamp(0, B)
    counts = shares.round().long()
    while (excess := int(counts.sum()) - B) != 0:
        # Everybody's turn comes before anybody's second one: whole rounds are taken at once, a forged gradient asks for many.
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
