"""Where to start the softmax of samples that share a label, in a pruned gradient: columns that one sample alone fills.

Such a column, over its label row's entry, is the sample's own p_c / (1 − p_y). Others are mixtures: convex combinations, so
that the pure ones are corners, and successive projection finds corners. No weights of the head are needed for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.head import Head
from unsum.separate.adaptive.batch import Groups
from unsum.separate.exact.simplex import hunt_corners

_COLUMNS = 2000
_LEAST = 24  # survivors in a column that make its shape worth comparing
_FILL = 0.5  # of a row's usual size, for entries that were pruned


def hunt_probabilities(head: Head, batch: Groups, group: int) -> Tensor | None:
    """(n, C) rough softmax rows of the group's samples, or None where too few columns tell."""
    n, label = int(batch.counts[group]), int(batch.labels[group])
    survivors = (head.grad_W != 0).sum(0)
    alone = head.grad_W[label] < 0
    for other in batch.labels.tolist():
        if other != label:
            alone = alone & (head.grad_W[other] >= 0)
    ranked = (survivors * alone).topk(min(_COLUMNS, len(survivors)))
    columns = ranked.indices[ranked.values >= _LEAST]
    if len(columns) < 4 * n:
        return None
    X = head.grad_W[:, columns].double()
    present = X != 0
    present[batch.labels] = False
    shapes = X / -X[label]
    usual = (shapes * present).sum(1) / present.sum(1).clamp_min(1)
    shapes = torch.where(present, shapes, _FILL * usual[:, None])
    shapes[batch.labels] = 0.0
    picked = hunt_corners(shapes.T, n)
    if len(picked) < n:
        return None
    P = shapes[:, picked].T.clamp_min(0)
    P[:, batch.labels] = usual.median().clamp_min(0)
    P = P + 1e-3 / head.classes
    rows: Tensor = P / P.sum(1, keepdim=True)
    return rows
