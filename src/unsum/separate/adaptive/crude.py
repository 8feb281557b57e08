"""Signs, and rounding so coarse that most entries are zero: what label rows say about each feature by themselves.

A label row's entry is −f (1 − p)/B plus the small share of others, so it is negative where the sample has the feature. Of
signs nothing else is left. Unbiased random rounding to a step L far above f hits it with probability f/L: counts, and the mean
of a feature given its count follows from a gamma prior.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.head import Head
from unsum.separate.adaptive.batch import Groups
from unsum.separate.adaptive.prior import Posterior
from unsum.separate.adaptive.recognize import RecognizedDefense
from unsum.separate.adaptive.rounds import GroupFit, errors_of, logits_of, start_probabilities

_FINE = 0.2  # mean feature, in steps
_SPARSEST = 0.05  # shape of the prior: nineteen of twenty features are then next to nothing


def fit_signs(head: Head, batch: Groups) -> GroupFit:
    """Features 1 where a label row is negative: their direction as far as it is known, and no size."""
    features = (head.grad_W[batch.labels] < 0).double()
    # Sizes are unknown altogether, so that an error as large as the features is to be expected.
    return GroupFit(Posterior(features, features.square()), logits_of(head, features), False)


def fit_hits(head: Head, batch: Groups, defense: RecognizedDefense) -> GroupFit:
    """The mean of a feature given how many steps its label row shows."""
    assert defense.lattice is not None
    P, alpha = start_probabilities(head, batch), batch.alpha(head.reduction)
    own = torch.arange(len(P), device=P.device)
    E = errors_of(head, batch, defense, P)
    gain = alpha * E[own, batch.labels].abs().clamp_min(1e-12)
    hits = (-head.grad_W[batch.labels].double() / defense.lattice.step).clamp_min(0)
    step = (defense.lattice.step / gain)[:, None]
    usual = hits.mean(1, keepdim=True).clamp_min(1e-12)
    # A gamma prior of that mean. Its shape is 1 over the squared coefficient of variation; the mean square lies between
    # those of h (h − 1) and of h, for rounding up and down.
    square = ((hits * (hits - 1)).mean(1, keepdim=True) * hits.square().mean(1, keepdim=True)).sqrt()
    shape: Tensor = (usual.square() / square.clamp_min(1e-300)).clamp(_SPARSEST, 1.0)
    weight = 1 / (shape / usual + 1)
    # Steps that are not large need no prior: rounding then errs by a part of a step, and hardly where there is nothing.
    fine = (usual > _FINE) | (hits > 1)
    mean = torch.where(fine, hits, (shape + hits) * weight) * step
    variance = torch.where(fine, (hits > 0) / 6, (shape + hits) * weight.square()) * step**2
    return GroupFit(Posterior(mean, variance), logits_of(head, mean), False)
