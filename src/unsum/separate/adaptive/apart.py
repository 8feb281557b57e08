"""From groups to samples: groups of one label are split where the gradient allows it, else every member is the mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import Head
from unsum.separate.adaptive.batch import Groups
from unsum.separate.adaptive.recognize import RecognizedDefense
from unsum.separate.adaptive.rounds import GroupFit
from unsum.separate.adaptive.split import MOST_MEMBERS, split
from unsum.separate.exact.starts import hunt_corners

Starts = Callable[[], Tensor | None]

_COLUMNS = 2000  # looked at for corners, those with the most survivors
_LEAST = 24  # survivors in a column that make its shape worth comparing
_FILL = 0.5  # of a row's usual size, for entries that were pruned


@dataclass(frozen=True)
class ToldApart:
    """One row per sample."""

    labels: Tensor  # (B,)
    features: Tensor  # (B, H)
    logits: Tensor  # (B, C)
    errors: Tensor  # (B,) expected, relative
    merged: list[list[int]]  # samples that are given as their mean


def tell_apart(
    head: Head, batch: Groups, defense: RecognizedDefense, fit: GroupFit, starts: Starts | None = None
) -> ToldApart:
    """Every sample of the batch; `starts` may give rough softmax rows (B, C) of all samples in the order of their labels."""
    first = 0
    features, logits, errors, merged = [], [], [], []
    expected = member_errors(fit, batch)
    for group, count in enumerate(batch.counts.tolist()):
        members = list(range(first, first + count))
        found = None
        if 2 <= count <= MOST_MEMBERS and not fit.signed:
            P = hunt_probabilities(head, batch, group) if defense.kind == "pruned" else None
            rough = starts() if P is None and starts is not None else None
            P = P if rough is None else rough[members]
            found = None if P is None else split(head, batch, defense, fit, group, P)
        if found is not None and float(found[0].relative_errors.max()) < float(expected[group]):
            features.append(found[0].mean)
            logits.append(found[1])
            errors.append(found[0].relative_errors)
        else:
            features.append(fit.posterior.mean[group].expand(count, -1))
            logits.append(fit.logits[group].expand(count, -1))
            errors.append(expected[group].expand(count))
            merged += [members] if count > 1 else []
        first += count
    return ToldApart(batch.members, torch.cat(features), torch.cat(logits), torch.cat(errors), merged)


def member_errors(fit: GroupFit, batch: Groups) -> Tensor:
    """(g,) the expected relative error of one sample: that of its group's mean, and its distance from that mean.

    With n samples of cosine c, the mean has the squared length (1 + (n − 1) c)/n of a sample's.
    """
    own = fit.posterior.relative_errors
    n = batch.counts.double()
    c = _likeness(fit.posterior.mean, int(batch.counts.max()))
    mean_length = (1 + (n - 1) * c) / n
    return (own.square() * mean_length + (1 - mean_length)).clamp(0, 4).sqrt()


def _likeness(features: Tensor, members: int) -> float:
    """The cosine of two samples of one group, guessed: the median between groups, or what their sparsity makes of it.

    Of features that are exponential where they are not zero, a share a, independent ones have the cosine a/2.
    """
    if len(features) < 2:
        silent = float((features < 0.1 * features.mean()).double().mean())
        return float(1 - silent ** (1 / members)) / 2
    unit = features / features.norm(dim=1, keepdim=True).clamp_min(1e-300)
    upper = torch.triu_indices(len(unit), len(unit), 1, device=unit.device)
    return min(max(float((unit @ unit.T)[upper[0], upper[1]].median()), 0.0), 1.0)


def hunt_probabilities(head: Head, batch: Groups, group: int) -> Tensor | None:
    """(n, C) rough softmax rows of a group's samples in a pruned gradient, or None where too few columns tell.

    A column that one sample alone fills, over its label row's entry, is the sample's own p_c / (1 − p_y). Others are mixtures:
    convex combinations, so that the pure ones are corners, and successive projection finds corners. No weights are needed for it.
    """
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
    return P / P.sum(1, keepdim=True)
