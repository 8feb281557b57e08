"""Rounds of a fit: features from the gradient with the softmax known, then the softmax from the features.

G depends on the features only through the logits F Wᵀ + b, which average the errors of all features, so that it is known
far better than they are and few rounds suffice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import Head
from unsum.separate.adaptive.batch import Groups
from unsum.separate.adaptive.censored import below_threshold
from unsum.separate.adaptive.columns import fit_all, fit_survivors
from unsum.separate.adaptive.prior import Posterior, denoise, looks_signed
from unsum.separate.adaptive.recognize import RecognizedDefense

_ROUNDS = 3
_LOGIT_DOUBT = 0.3  # error of a logit that a softmax computed from estimated features is taken to have


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
    E[own, batch.labels] -= batch.counts
    if head.grad_b is not None and defense.kind != "sign":
        E[own, batch.labels] = torch.where(trusted, by_bias, E[own, batch.labels])
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
    signed = _rows_are_signed(X)
    moments = [_moments(X[i], defense.threshold) for i in range(len(X))]
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


def _rows_are_signed(X: Tensor) -> bool:
    """Whether label rows hold large entries of both signs; −f/B does not, for features behind a ReLU."""
    wrong, whole = X.clamp_min(0).square().sum(), X.square().sum()
    return float(wrong) > 0.05 * float(whole)


def _moments(row: Tensor, threshold: float) -> tuple[float, float]:
    kept = row[row < 0].abs() / threshold
    return below_threshold(kept, int((row == 0).sum()))
