"""Row sums: the row of ∇W of a class that some sample carries sums to far less than all others.

With f ≥ 0, g_c = Σ_k ∇W_ck = mean_i (p_ic − [c = y_i]) Σ_k f_ik: every sample lowers the sum of its
own class, and raises all others by about the same small amount. Noise of deviation σ on every entry
adds σ √H to a sum whose signal grows with H, so sums are read through noise in which single
entries, and the bias gradient, are lost. Signs leave the sums in their order as well.

How far is far is measured on the sums themselves: most classes occur in no sample, and the median
and the median distance from it, which outliers do not move, are theirs with all the noise:

    labels = all c with g_c < median(g) − 4 · 1.4826 · median |g − median(g)|,

and besides the lowest sums below zero, as many as keep false names few. f ≥ 0 makes no sum of a
class that nobody carries negative; noise does. The columns of ∇W sum to zero, so what they sum to
instead is noise of deviation σ √C, and g of a class that nobody carries falls below t with
probability Φ((t − μ) / σ_g). Here μ ≥ 0 is what the median of g surely exceeds, and σ_g² = σ² H
plus the square of what all sums have in common (rounding to few levels shifts them all alike). The
k lowest are named for the largest k with C · Φ((g_(k) − μ) / σ_g) ≤ k / 10.

Where the batch size is granted, no more classes than samples are named, the lowest first, and the
rest of the samples are shared out by how far each row was lowered.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.labels.ilrg import whole_counts
from unsum.labels.method import Clues, RuleNeeds, label_rule

_NORMAL = 1.4826  # deviations of a normal distribution in one median distance
_FAR = 4.0  # [deviations] of the bulk; of a thousand sums of noise, one in thirty draws lies lower
_FALSE = 0.1  # [share] of the names that may be expected to be false: most of them must be labels
_SURELY = 2.0 * 1.2533  # [σ/√C] two standard errors of a median of C normal numbers
_ROUNDING = 1e-6  # of the largest sum
_FEWEST = 4  # classes below which there is no bulk to speak of


@label_rule(
    "row-sum",
    summary="classes whose row sums lie far below the others', through noise and signs (unsum)",
    needs=RuleNeeds(non_negative_features=True),
)
def row_sum(evidence: Clues) -> Tensor:
    """(n,) every class that stands out; (B,) with duplicates where the batch size is granted."""
    g, B = evidence.row_sums, evidence.knowledge.known_batch_size
    depth = g.median() - g
    spread = _NORMAL * depth.abs().median()
    negative = _negative(g, evidence.head.column_sums())
    apart = depth > _FAR * spread if len(g) >= _FEWEST else torch.zeros_like(negative)
    classes = (apart | negative).nonzero()[:, 0]
    if len(classes) == 0 or not bool((depth[classes] > 0).any()):
        raise UnsumError(
            "No row sum lies far below the others, so 'row-sum' finds no label; use 'exact'."
        )
    if B is None:
        return classes
    classes = classes[depth[classes].argsort(descending=True)[:B]]
    # from the highest of all sums
    pulls = (float(depth.amin().abs()) + depth[classes]).clamp_min(0)
    pulls = pulls / pulls.sum()
    counts = 1 + whole_counts(B * pulls - 1, B - len(classes))
    return torch.repeat_interleave(classes, counts)


def _negative(g: Tensor, columns: Tensor) -> Tensor:
    """(C,) whether a sum lies among those below zero of which few are expected to be noise."""
    C, H = len(g), len(columns)
    own = math.sqrt(float(columns.square().mean()) / C * H)
    noise = max(math.hypot(own, float(g.mean())), _ROUNDING * float(g.abs().max()))
    usual = max(0.0, float(g.median()) - _SURELY * noise / math.sqrt(C))
    lowest, order = g.sort()
    expected = C * torch.special.ndtr((lowest - usual) / noise)
    few = (lowest < 0) & (expected <= _FALSE * torch.arange(1, C + 1, dtype=g.dtype))
    named = torch.zeros_like(g, dtype=torch.bool)
    named[order[: int(few.nonzero().max()) + 1 if bool(few.any()) else 0]] = True
    return named
