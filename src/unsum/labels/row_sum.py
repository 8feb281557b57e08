"""Row sums: a class that some sample carries has a row of ∇W whose sum lies far below those of all other classes.

With f ≥ 0, g_c = Σ_k ∇W_ck = mean_i (p_ic − [c = y_i]) Σ_k f_ik: every sample pulls its own class down, and all others up by
about the same small amount. Noise of deviation σ on every entry adds σ √H to a sum whose pull grows with H, so sums are read
through noise in which single entries, and the bias gradient, are lost. Signs leave the sums in their order as well.

How far is far is measured on the sums themselves: classes that nobody carries are the bulk of them, and the median and the
median distance from it, which outliers do not move, are those of the bulk with all the noise it has:

    labels = all c with g_c < median(g) − 4 · 1.4826 · median |g − median(g)|,  or  g_c < −4 σ √H

The second holds however many of the classes occur: f ≥ 0 makes no sum of a class that nobody carries negative, and the columns of
∇W sum to zero, so what they sum to instead is noise of deviation σ √C. Where positive sums lie well above the noise, noise makes
hardly one of them negative, and g_c < 0 is enough.

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
_CLEAR = 3.0  # deviations of the noise above zero, from which positive sums seldom turn negative
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
    C, H = evidence.head.grad_W.shape
    noise = float(evidence.head.column_sums().square().mean() / C * H) ** 0.5  # the deviation of a sum
    usual = float(g[g > 0].median()) if bool((g > 0).any()) else 0.0
    below = 0.0 if usual > _CLEAR * noise else _FAR * noise
    negative = g < -max(below, _ROUNDING * float(g.abs().max()))
    apart = depth > _FAR * spread if C >= _FEWEST else torch.zeros_like(negative)
    classes = (apart | negative).nonzero()[:, 0]
    if len(classes) == 0 or not bool((depth[classes] > 0).any()):
        raise UnsumError("No row sum lies far below the others, so 'row-sum' finds no label; use 'exact'.")
    if B is None:
        return classes
    classes = classes[depth[classes].argsort(descending=True)[:B]]
    pulls = (float(depth.amin().abs()) + depth[classes]).clamp_min(0)  # from the highest of all sums
    pulls = pulls / pulls.sum()
    counts = 1 + whole_counts(B * pulls - 1, B - len(classes))
    return torch.repeat_interleave(classes, counts)
