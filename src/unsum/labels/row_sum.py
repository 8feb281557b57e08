"""Row sums: a class that some sample carries has a row of ∇W whose sum lies far below those of all other classes.

With f ≥ 0, g_c = Σ_k ∇W_ck = mean_i (p_ic − [c = y_i]) Σ_k f_ik: every sample pulls its own class down, and all others up by
about the same small amount. Noise of deviation σ on every entry adds σ √H to a sum whose pull grows with H, so sums are read
through noise in which single entries, and the bias gradient, are lost. Signs leave the sums in their order as well.

How far is far is measured on the sums themselves: classes that nobody carries are the bulk of them, and the median and the
median distance from it, which outliers do not move, are those of the bulk with all the noise it has:

    labels = all c with g_c < median(g) − 4 · 1.4826 · median |g − median(g)|

Where the batch size is granted, no more classes than samples are named, the lowest first, and the rest of the samples are
shared out by how far each row was pulled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.labels.ilrg import whole_counts
from unsum.labels.method import Clues, RuleNeeds, label_rule

_NORMAL = 1.4826  # deviations of a normal distribution in one median distance
_FAR = 4.0  # deviations; of a thousand sums of pure noise, one in thirty draws lies lower
_FEWEST = 4  # classes below which there is no bulk to speak of


@label_rule(
    "row-sum",
    summary="classes whose row sums lie far below the others', through noise and signs (unsum)",
    needs=RuleNeeds(non_negative_features=True),
)
def row_sum(evidence: Clues) -> Tensor:
    """(n,) every class that stands out; (B,) with duplicates where the batch size is granted."""
    g, B = evidence.row_sums, evidence.knowledge.known_batch_size
    if len(g) < _FEWEST:
        raise UnsumError(f"'row-sum' compares classes with each other, and {len(g)} are too few; use 'exact'.")
    depth = g.median() - g
    spread = _NORMAL * depth.abs().median()
    classes = (depth > _FAR * spread).nonzero()[:, 0]
    if len(classes) == 0 or float(depth.max()) <= 0:
        raise UnsumError("No row sum lies far below the others, so 'row-sum' finds no label; use 'exact'.")
    if B is None:
        return classes
    classes = classes[depth[classes].argsort(descending=True)[:B]]
    pulls = depth[classes] / depth[classes].sum()
    counts = 1 + whole_counts(B * pulls - 1, B - len(classes))
    return torch.repeat_interleave(classes, counts)
