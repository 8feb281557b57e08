"""ToldApart of one label told apart: in turn their features, with the softmax known, and their softmax, with the features.

The features' posterior is that of `supports`; the softmax follows from its mean through W, half-way in each turn, because both
err together and full steps overshoot. The turn with the largest evidence counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import Head
from unsum.separate.adaptive.batch import Groups
from unsum.separate.adaptive.columns import normal_equations, normal_equations_of_survivors
from unsum.separate.adaptive.prior import Posterior
from unsum.separate.adaptive.rounds import logits_of
from unsum.separate.adaptive.supports import Sparsity, weigh

_TURNS = (2, 2, 2, 2, 2, 2, 3, 3)  # the largest sets that are weighed: small ones lead the way
_DAMPING = 0.5
_CROWDED = 0.8  # share of columns that fill the largest sets, beyond which features are not sparse


@dataclass(frozen=True)
class Others:
    """The rest of the batch, and what is known of the group beforehand."""

    features: Tensor  # (m, H)
    errors: Tensor  # (m, C) P − Y, times the samples a row stands for
    mean: Tensor  # (H,) mean features of the group
    variance: Tensor  # (H,)


@dataclass(frozen=True)
class Split:
    posterior: Posterior
    logits: Tensor
    evidence: float


def split(
    head: Head, batch: Groups, group: int, P: Tensor, others: Others, noise: list[float], threshold: float
) -> Split | None:
    """The group's samples from a rough softmax P (n, C); None where their features are not sparse.

    Args:
        others: the remaining rows of the fit, each times the number of samples it stands for.
        noise: what an entry of the gradient is taken to err by, first and last turn; a rough softmax errs by itself.
        threshold: entries of smaller magnitude were not sent; 0 if all were.
    """
    alpha, label = batch.alpha(head.reduction), batch.labels[group]
    Y = torch.nn.functional.one_hot(label, head.classes).double()
    labels = torch.cat([label[None], batch.labels[batch.labels != label]])
    live = (head.grad_W[label] < 0).nonzero()[:, 0]  # where the label row was pruned, all are small
    if threshold > 0 and len(live) == 0:  # nothing of it was left
        return None
    best: Split | None = None
    sparsity = Sparsity.of(others.mean, _silent(head, label, others, threshold > 0), len(P))
    Z, present = P.log(), others.mean.repeat(len(P), 1)
    for turn, largest in enumerate(_TURNS):
        deviation = noise[0] * (noise[1] / noise[0]) ** (turn / (len(_TURNS) - 1))
        coefficient = alpha * (Z.softmax(1) - Y)
        outside = alpha * others.errors
        if threshold > 0:
            N, Q = normal_equations_of_survivors(
                head, coefficient, outside, others.features, present, labels, threshold
            )
            N, Q = N[:, :, live], Q[:, live]
        else:
            N, Q = normal_equations(head, coefficient, outside, others.features)
        weighed = weigh(N / deviation**2, Q / deviation**2, sparsity, largest)
        if not math.isfinite(weighed.evidence) or (largest == _TURNS[-1] and weighed.crowded > _CROWDED):
            return None
        posterior = _spread_out(weighed.posterior, others, live) if threshold > 0 else weighed.posterior
        best = Split(posterior, logits_of(head, posterior.mean), weighed.evidence)
        Z, present = _DAMPING * Z + (1 - _DAMPING) * best.logits, posterior.mean
    return best


def _spread_out(posterior: Posterior, others: Others, live: Tensor) -> Posterior:
    """The posterior of some columns among all of them; elsewhere every sample has the group's mean."""
    n = len(posterior.mean)
    mean, variance = others.mean.repeat(n, 1), others.variance.repeat(n, 1)
    mean[:, live], variance[:, live] = posterior.mean, posterior.variance
    return Posterior(mean, variance)


def _silent(head: Head, label: Tensor, others: Others, pruned: bool) -> float:
    """The share of columns in which no sample of the group has anything."""
    if pruned:
        return float((head.grad_W[label] >= 0).double().mean())
    return float((others.mean < 0.1 * others.mean.mean()).double().mean())
