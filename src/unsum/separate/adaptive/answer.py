"""From groups to samples: the answer in the common form, with what is known about its errors."""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.head import Head
from unsum.leak import Leak
from unsum.separate.adaptive.batch import Batch
from unsum.separate.adaptive.recognise import Defence
from unsum.separate.adaptive.rounds import Fit
from unsum.separate.misfit import relative_misfit

_LIKENESS = 0.5  # cosine of two samples' features, where no two can be compared


def answer(head: Head, batch: Batch, defence: Defence, fit: Fit) -> Leak:
    """Every sample of a group gets the group's mean."""
    members = torch.repeat_interleave(torch.arange(len(batch.counts), device=batch.counts.device), batch.counts)
    targets = torch.nn.functional.one_hot(batch.labels, head.classes).double()[members]
    features, logits = fit.posterior.mean[members], fit.logits[members]
    errors = member_errors(fit, batch)
    return Leak(
        method="adaptive",
        targets=targets,
        logits=logits,
        features=features.to(torch.promote_types(head.W.dtype, torch.float32)),
        residual=relative_misfit(head, logits, targets, features),
        predicted_error=float(errors.max()),
        exact=False,
        scale=batch.scale,
        notes=[defence.sentence, *batch.notes, *_merged(batch)],
    )


def member_errors(fit: Fit, batch: Batch) -> Tensor:
    """(g,) the expected relative error of one sample: that of its group's mean, and its distance from that mean.

    With n samples of cosine c, the mean has the squared length (1 + (n − 1) c)/n of a sample's.
    """
    own = fit.posterior.relative_errors
    n, c = batch.counts.double(), _likeness(fit.posterior.mean)
    mean_length = (1 + (n - 1) * c) / n
    return (own.square() * mean_length + (1 - mean_length)).clamp(0, 4).sqrt()


def _likeness(features: Tensor) -> float:
    """The median cosine between the groups' features, as a guess of that inside a group."""
    if len(features) < 2:
        return _LIKENESS
    unit = features / features.norm(dim=1, keepdim=True).clamp_min(1e-300)
    cosines = (unit @ unit.T)[tuple(torch.triu_indices(len(unit), len(unit), 1))]
    return min(max(float(cosines.median()), 0.0), 1.0)


def _merged(batch: Batch) -> list[str]:
    several = int((batch.counts > 1).sum())
    if several == 0:
        return []
    members = int(batch.counts[batch.counts > 1].sum())
    return [f"{members} samples share {several} label(s) and cannot be told apart after that; each is the mean of its label."]
