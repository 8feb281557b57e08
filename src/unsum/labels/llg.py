"""LLG: every sample of class c pulls the row sum g_c = Σ_k ∇W_ck down by about the same amount;
count the pulls.

With f ≥ 0 and an untrained model, g_c ≈ m n_c + s_c: n_c samples of class c, each of impact m < 0,
and an offset s_c ≥ 0 that the other samples leave. LLG takes both from the gradient alone:

    m = (1 + 1/C)/B · Σ_{g_c < 0} g_c,    s = 0

because B samples of a uniform softmax sum up to −(1 − 1/C) per unit of features. Then it counts
down: every class of negative g_c is named once (it is surely there) and freed of one m; until B
labels are named, the class of lowest g_c is named again and freed of another m. LLG+ and LLG*
differ in where m and s come from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.labels.method import Clues, RuleNeeds, label_rule


@label_rule(
    "llg",
    summary="counts how far each row sum was pulled down (LLG)",
    needs=RuleNeeds(batch_size=True, non_negative_features=True),
)
def llg(evidence: Clues) -> Tensor:
    """(B,) labels with m and s from the shared gradient."""
    g = evidence.row_sums
    impact = float(g[g < 0].sum()) * (1 + 1 / len(g)) / evidence.B
    if impact == 0:
        raise UnsumError(
            "No row of the gradient has a negative sum, so 'llg' finds no label; use 'exact' or "
            "'llg*'."
        )
    return count_down(g, impact, torch.zeros_like(g), evidence.B)


def count_down(g: Tensor, impact: float, offset: Tensor, B: int) -> Tensor:
    """(B,) the labels whose pulls explain the row sums `g` (C,), for one impact m < 0 and offsets s
    (C,)."""
    certain = g.argsort(stable=True)[: min(B, int((g < 0).sum()))]
    left = g - offset
    left[certain] -= impact
    found = certain.tolist()
    while len(found) < B:
        lowest = int(left.argmin())
        found.append(lowest)
        left[lowest] -= impact
    return torch.tensor(found, device=g.device)
