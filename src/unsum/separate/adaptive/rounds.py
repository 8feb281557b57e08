"""Rounds of a fit: features from the gradient with the softmax known, then the softmax from the features.

G depends on the features only through the logits F Wᵀ + b, which average the errors of all features, so that it is known
far better than they are and few rounds suffice.

Signs, and rounding so coarse that most entries are zero, need no rounds: a label row's entry is −f (1 − p)/B plus the small share
of others, so it is negative where the sample has the feature. Of signs nothing else is left. Unbiased random rounding to a step L
far above f hits it with probability f/L: counts, and the mean of a feature given its count follows from a gamma prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import Head
from unsum.separate.adaptive.batch import Groups
from unsum.separate.adaptive.columns import fit_all, fit_survivors
from unsum.separate.adaptive.prior import Posterior, denoise, looks_signed
from unsum.separate.adaptive.recognize import RecognizedDefense

_ROUNDS = 3  # of features from the softmax and the softmax from features
_LOGIT_DOUBT = 0.3  # error of a logit that a softmax computed from estimated features is taken to have
_NEAR, _FAR = 1.5, 2.25  # bounds of the two windows above the threshold, in its units
_STEEPEST = 3.0  # e-folds per threshold that the density may rise by, towards zero
_FINE = 0.2  # mean feature, in steps
_SPARSEST = 0.05  # shape of the prior: nineteen of twenty features are then next to nothing


@dataclass(frozen=True)
class GroupFit:
    """One row per group: the mean features of the samples of one label."""

    posterior: Posterior
    logits: Tensor  # (g, C)
    signed: bool


def start_probabilities(head: Head, batch: Groups) -> Tensor:
    b = torch.zeros(head.classes, dtype=torch.float64, device=head.W.device) if head.b is None else head.b.double()
    return torch.softmax(b, 0).expand(len(batch.labels), -1).clone()


def errors_of(head: Head, batch: Groups, defense: RecognizedDefense, P: Tensor) -> Tensor:
    """E (g, C): P − Y summed over each group, with the labels' own entries from ∇b where that knows them better."""
    alpha = batch.alpha(head.reduction)
    own = torch.arange(len(P), device=P.device)
    E = batch.counts[:, None] * P
    if head.grad_b is not None and defense.kind != "sign":
        grad_b = head.grad_b.double()[batch.labels]
        p_own = P[own, batch.labels]
        by_bias = grad_b / alpha - (E[:, batch.labels].sum(0) - E[own, batch.labels])
        doubt = _LOGIT_DOUBT * batch.counts * p_own * (1 - p_own)
        trusted = (grad_b != 0) & (doubt > defense.sigma_b / alpha) & (by_bias < 0) & (by_bias > -batch.counts)
        E[own, batch.labels] = torch.where(trusted, by_bias, E[own, batch.labels] - batch.counts)
    else:
        E[own, batch.labels] -= batch.counts
    return E


def logits_of(head: Head, features: Tensor) -> Tensor:
    Z = head.logits(features)
    return Z if head.b is None else Z + head.b.double()


def fit_noisy(head: Head, batch: Groups, defense: RecognizedDefense) -> GroupFit:
    """Least squares over all rows, then empirical Bayes."""
    P, alpha = start_probabilities(head, batch), batch.alpha(head.reduction)
    rows = batch.labels if defense.kind == "grid" and _flat(head, batch, defense) else None
    for _ in range(_ROUNDS):
        E = errors_of(head, batch, defense, P)
        estimates, deviations = fit_all(head, E, alpha, defense.sigma, rows)
        signed = defense.sigma == 0 or looks_signed(estimates, deviations)
        posterior = denoise(estimates, deviations, signed=signed)
        Z = logits_of(head, posterior.mean)
        P = Z.softmax(1)
    if defense.kind == "grid":  # its rounding is no noise: values on a grid look as if they were known
        posterior = Posterior(posterior.mean, deviations.square()[:, None].expand_as(estimates))
    return GroupFit(posterior, Z, signed)


def _flat(head: Head, batch: Groups, defense: RecognizedDefense) -> bool:
    """Whether most rows that are no label lie within one step of the grid: their rounding is no noise then."""
    others = torch.ones(head.classes, dtype=torch.bool, device=head.W.device)
    others[batch.labels] = False
    sample = head.grad_W[others][:64].double()
    step = 1.0 if defense.lattice is None else defense.lattice.step
    return float((sample - sample.median()).square().mean().sqrt()) < 2 * step


def fit_pruned(head: Head, batch: Groups, defense: RecognizedDefense) -> GroupFit:
    """Least squares over what survived; what did not is known to be small and takes the mean of such entries."""
    P, alpha = start_probabilities(head, batch), batch.alpha(head.reduction)
    own = torch.arange(len(P), device=P.device)
    X = head.grad_W[batch.labels].double()
    survived = X != 0
    # Large entries of both signs: −f/B has none, for features behind a ReLU.
    signed = float(X.clamp_min(0).square().sum()) > 0.05 * float(X.square().sum())
    moments = [below_threshold(row[row < 0].abs() / defense.threshold, int((row == 0).sum())) for row in X]
    mean_below, variance_below = (X.new_tensor(column) for column in zip(*moments, strict=True))
    for _ in range(_ROUNDS):
        E = errors_of(head, batch, defense, P)
        # The threshold in units of the features of each group's own row.
        bound = defense.threshold / (alpha * E[own, batch.labels].abs().clamp_min(1e-12))
        mean = torch.where(survived, 0.0, (0.0 if signed else 1.0) * (mean_below * bound)[:, None])
        spread = ((variance_below + 1e-3).sqrt() * bound)[:, None]
        entry = 1e-2 * defense.threshold  # the softmax's own error in an entry, far below the threshold
        precision = torch.where(survived, 1e-12 / bound[:, None] ** 2, 1 / spread**2) * entry**2
        F = fit_survivors(head, E, alpha, batch.labels, mean, precision, signed=signed)
        limit = bound[:, None].expand_as(F)
        F = torch.where(survived, F, F.clamp(-limit, limit))
        Z = logits_of(head, F)
        P = Z.softmax(1)
    variance = torch.where(survived, 0.0, (variance_below * bound.square())[:, None])
    return GroupFit(Posterior(F, variance), Z, signed)


def below_threshold(sizes: Tensor, missing: int) -> tuple[float, float]:
    """Mean and variance of the entries that pruning removed, in units of the threshold.

    The survivors of a row crowd towards the threshold. How densely, and how fast that changes, tells how many features lie just
    below it; the others of the row's missing entries are zeros, as most features after a ReLU are.

    Args:
        sizes: (n,) magnitudes of the survivors over the threshold, all of at least 1.
        missing: how many entries of the same row did not survive.
    """
    near = float(((sizes >= 1) & (sizes < _NEAR)).sum()) / (_NEAR - 1)
    far = float(((sizes >= _NEAR) & (sizes < _FAR)).sum()) / (_FAR - _NEAR)
    if missing == 0 or near == 0:
        return 0.0, 0.0
    middle = (1 + _NEAR) / 2
    rate = math.log(near / far) / ((_NEAR + _FAR) / 2 - middle) if far > 0 else _STEEPEST
    rate = min(max(rate, 0.0), _STEEPEST)
    # Density near·exp(rate (middle − r)) for 0 < r < 1, by quadrature.
    r = torch.linspace(0, 1, 101, dtype=torch.float64)
    density = near * torch.exp(rate * (middle - r))
    count, first, second = (float(torch.trapezoid(density * r**k, r)) for k in range(3))
    share = min(count, float(missing)) / (count * missing)
    mean = first * share
    return mean, max(second * share - mean**2, 0.0)


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
