"""From groups to samples: groups of one label are split where the gradient allows it, else every member is the mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import Head
from unsum.separate.adaptive.batch import Groups
from unsum.separate.adaptive.corners import hunt_probabilities
from unsum.separate.adaptive.prior import Posterior
from unsum.separate.adaptive.recognize import RecognizedDefense
from unsum.separate.adaptive.rounds import GroupFit, errors_of
from unsum.separate.adaptive.split import Others, split
from unsum.separate.adaptive.supports import can_be_weighed

_ROUGH = (0.3, 0.2)  # of the threshold: what the softmax's own error makes of a surviving entry, first and last


Starts = Callable[[], Tensor | None]


def no_starts() -> Tensor | None:
    """Where nothing tells samples of one label apart to begin with."""
    return None


@dataclass(frozen=True)
class ToldApart:
    """One row per sample."""

    labels: Tensor  # (B,)
    features: Tensor  # (B, H)
    logits: Tensor  # (B, C)
    errors: Tensor  # (B,) expected, relative
    merged: list[list[int]]  # samples that are given as their mean


def tell_apart(head: Head, batch: Groups, defense: RecognizedDefense, fit: GroupFit, starts: Starts) -> ToldApart:
    """Every sample of the batch; `starts` gives rough softmax rows (B, C) of all samples in the order of their labels."""
    first = 0
    labels, features, logits, errors, merged = [], [], [], [], []
    expected = member_errors(fit, batch)
    for group, count in enumerate(batch.counts.tolist()):
        members = list(range(first, first + count))
        found = None
        if can_be_weighed(count) and not fit.signed:
            P = hunt_probabilities(head, batch, group) if defense.kind == "pruned" else None
            rough = starts() if P is None else None
            P = P if rough is None else rough[members]
            found = None if P is None else _split(head, batch, defense, fit, group, P)
        if found is not None and float(found[0].relative_errors.max()) < float(expected[group]):
            features.append(found[0].mean)
            logits.append(found[1])
            errors.append(found[0].relative_errors)
        else:
            features.append(fit.posterior.mean[group].expand(count, -1))
            logits.append(fit.logits[group].expand(count, -1))
            errors.append(expected[group].expand(count))
            merged += [members] if count > 1 else []
        labels.append(batch.labels[group].expand(count))
        first += count
    return ToldApart(torch.cat(labels), torch.cat(features), torch.cat(logits), torch.cat(errors), merged)


def _split(
    head: Head, batch: Groups, defense: RecognizedDefense, fit: GroupFit, group: int, P: Tensor
) -> tuple[Posterior, Tensor] | None:
    rest = [other for other in range(len(batch.labels)) if other != group]
    E = errors_of(head, batch, defense, fit.logits.softmax(1))
    others = Others(fit.posterior.mean[rest], E[rest], fit.posterior.mean[group], fit.posterior.variance[group])
    noise = [rough * defense.threshold for rough in _ROUGH] if defense.threshold > 0 else [defense.sigma] * 2
    found = split(head, batch, group, P, others, noise, defense.threshold)
    return None if found is None else (found.posterior, found.logits)


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
