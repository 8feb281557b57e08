"""Rounds of a fit: features from the gradient with the softmax known, then the softmax from the
features.

G depends on the features only through the logits F Wᵀ + b, which average the errors of all
features, so that it is known far better than they are and few rounds suffice.

Signs, and rounding so coarse that most entries are zero, need no rounds: a label row's entry is −f
(1 − p)/B plus the small share of others, so it is negative where the sample has the feature. Of
signs nothing else is left. Unbiased random rounding to a step L far above f hits it with
probability f/L: counts, and the mean of a feature given its count follows from a gamma prior.

Features column by column: with G known, every column of ∇W = α Eᵀ F is a small least-squares
problem of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.head import Head
from unsum.labels.feature_prior import FeaturePrior
from unsum.separate.adaptive.batch import Groups
from unsum.separate.adaptive.prior import Posterior, denoise, looks_signed, size_of, unseen
from unsum.separate.adaptive.recognize import RecognizedDefense

_ROUNDS = 3  # of features from the softmax and the softmax from features
# error of a logit that a softmax computed from estimated features is taken to have
_LOGIT_DOUBT = 0.3
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
    unseen: Posterior | None = None  # (1, H) of a sample of which nothing was seen


def start_probabilities(head: Head, batch: Groups) -> Tensor:
    b = (
        torch.zeros(head.classes, dtype=torch.float64, device=head.W.device)
        if head.b is None
        else head.b.double()
    )
    return torch.softmax(b, 0).expand(len(batch.labels), -1).clone()


def errors_of(head: Head, batch: Groups, defense: RecognizedDefense, P: Tensor) -> Tensor:
    """E (g, C): P − Y summed over each group, with the labels' own entries from ∇b where that knows
    them better."""
    alpha = batch.alpha(head.reduction)
    own = torch.arange(len(P), device=P.device)
    E = batch.counts[:, None] * P
    if head.grad_b is not None and defense.kind != "sign":
        grad_b = head.grad_b.double()[batch.labels]
        p_own = P[own, batch.labels]
        by_bias = grad_b / alpha - (E[:, batch.labels].sum(0) - E[own, batch.labels])
        doubt = _LOGIT_DOUBT * batch.counts * p_own * (1 - p_own)
        trusted = (
            (grad_b != 0)
            & (doubt > defense.sigma_b / alpha)
            & (by_bias < 0)
            & (by_bias > -batch.counts)
        )
        E[own, batch.labels] = torch.where(trusted, by_bias, E[own, batch.labels] - batch.counts)
    else:
        E[own, batch.labels] -= batch.counts
    return E


def logits_of(head: Head, features: Tensor) -> Tensor:
    Z = head.logits(features)
    return Z if head.b is None else Z + head.b.double()


def fit_noisy(
    head: Head, batch: Groups, defense: RecognizedDefense, prior: FeaturePrior | None = None
) -> GroupFit:
    """Least squares over all rows, whose entries carry noise of the same size, then empirical
    Bayes."""
    P, alpha = start_probabilities(head, batch), batch.alpha(head.reduction)
    rows = batch.labels if defense.kind == "grid" and _flat(head, batch, defense) else None
    sure = torch.stack([chances.mean() for chances in batch.sure.split(batch.counts.tolist())])
    for _ in range(_ROUNDS):
        E = errors_of(head, batch, defense, P)
        used = E if rows is None else E[:, rows]
        # A direction that nothing determines must not blow up: the ridge is far below any that
        # matters.
        inverse = torch.linalg.pinv(alpha**2 * used @ used.T, rtol=1e-10, hermitian=True)
        Q = (
            head.mixed_rows(alpha * E)
            if rows is None
            else alpha * used @ head.grad_W[rows].double()
        )
        estimates, deviations = inverse @ Q, defense.sigma * inverse.diagonal().clamp_min(0).sqrt()
        signed = defense.sigma == 0 or looks_signed(estimates, deviations)
        if prior is not None:  # the model shows it, through any noise
            signed = signed or not prior.non_negative
        sized = prior
        if prior is not None:
            sized = prior.scaled(size_of(estimates, deviations, prior, sure))
        posterior = denoise(estimates, deviations, signed=signed, prior=sized)
        Z = logits_of(head, posterior.mean)
        P = Z.softmax(1)
    # its rounding is no noise: values on a grid look as if they were known
    if defense.kind == "grid":
        posterior = Posterior(posterior.mean, deviations.square()[:, None].expand_as(estimates))
    return GroupFit(posterior, Z, signed, None if sized is None else unseen(sized))


def _flat(head: Head, batch: Groups, defense: RecognizedDefense) -> bool:
    """Whether most rows that are no label lie within one step of the grid: their rounding is no
    noise then."""
    others = torch.ones(head.classes, dtype=torch.bool, device=head.W.device)
    others[batch.labels] = False
    sample = head.grad_W[others][:64].double()
    step = 1.0 if defense.lattice is None else defense.lattice.step
    return float((sample - sample.median()).square().mean().sqrt()) < 2 * step


def fit_pruned(head: Head, batch: Groups, defense: RecognizedDefense) -> GroupFit:
    """Least squares over what survived; what did not is known to be small and takes the mean of
    such entries."""
    P, alpha = start_probabilities(head, batch), batch.alpha(head.reduction)
    own = torch.arange(len(P), device=P.device)
    X = head.grad_W[batch.labels].double()
    survived = X != 0
    # Large entries of both signs: −f/B has none, for features behind a ReLU.
    signed = float(X.clamp_min(0).square().sum()) > 0.05 * float(X.square().sum())
    moments = [
        below_threshold(row[row < 0].abs() / defense.threshold, int((row == 0).sum())) for row in X
    ]
    mean_below, variance_below = (X.new_tensor(column) for column in zip(*moments, strict=True))
    for _ in range(_ROUNDS):
        E = errors_of(head, batch, defense, P)
        # The threshold in units of the features of each group's own row.
        bound = defense.threshold / (alpha * E[own, batch.labels].abs().clamp_min(1e-12))
        mean = torch.where(survived, 0.0, (0.0 if signed else 1.0) * (mean_below * bound)[:, None])
        spread = ((variance_below + 1e-3).sqrt() * bound)[:, None]
        # the softmax's own error in an entry, far below the threshold
        entry = 1e-2 * defense.threshold
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

    The survivors of a row crowd towards the threshold. How densely, and how fast that changes,
    tells how many features lie just below it; the others of the row's missing entries are zeros, as
    most features after a ReLU are.

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
    """Features 1 where a label row is negative: their direction as far as it is known, and no
    size."""
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
    # A gamma prior of that mean. Its shape is 1 over the squared coefficient of variation; the mean
    # square lies between those of h (h − 1) and of h, for rounding up and down.
    square = (
        (hits * (hits - 1)).mean(1, keepdim=True) * hits.square().mean(1, keepdim=True)
    ).sqrt()
    shape: Tensor = (usual.square() / square.clamp_min(1e-300)).clamp(_SPARSEST, 1.0)
    weight = 1 / (shape / usual + 1)
    # Steps that are not large need no prior: rounding then errs by a part of a step, and hardly
    # where there is nothing.
    fine = (usual > _FINE) | (hits > 1)
    mean = torch.where(fine, hits, (shape + hits) * weight) * step
    variance = torch.where(fine, (hits > 0) / 6, (shape + hits) * weight.square()) * step**2
    return GroupFit(Posterior(mean, variance), logits_of(head, mean), False)


# multiplications for the normal matrices of all columns, above which only label rows are used
_AFFORDABLE = 3e10
_BLOCK = 1 << 24  # entries handled at a time


def fit_survivors(
    head: Head,
    E: Tensor,
    alpha: float,
    labels: Tensor,
    mean: Tensor,
    precision: Tensor,
    *,
    signed: bool,
) -> Tensor:
    """(g, H) features from the entries that are not zero, with a prior N(mean, 1/precision) on each
    feature.

    `precision` is in units of one over the variance of an entry of ∇W. Features that come out
    negative are taken out of their column's system and set to zero, unless they may be negative.
    """
    g, C = E.shape
    H = head.grad_W.shape[1]
    rows = labels if g * (g + 1) / 2 * C * H > _AFFORDABLE else torch.arange(C, device=E.device)
    F = torch.empty_like(mean)
    step = max(1, _BLOCK // max(len(rows), g * g))
    coefficient = alpha * E[:, rows]
    upper = torch.triu_indices(g, g, device=E.device)
    products = (coefficient[upper[0]] * coefficient[upper[1]]).float()
    for start in range(0, H, step):
        columns = slice(start, start + step)
        X = head.grad_W[rows, columns].float()
        packed = (products @ (X != 0).float()).double()
        N = packed.new_zeros(X.shape[1], g, g)
        N[:, upper[0], upper[1]] = packed.T
        N[:, upper[1], upper[0]] = packed.T
        Q = (coefficient.float() @ X).double()
        F[:, columns] = _solve(N, Q.T, mean[:, columns].T, precision[:, columns].T, signed=signed).T
    return F


def _solve(N: Tensor, Q: Tensor, mean: Tensor, precision: Tensor, *, signed: bool) -> Tensor:
    """(n, g) solutions of n small systems (N + precision) f = Q + precision·mean, non-negative if
    they must be."""
    N = N + torch.diag_embed(precision)
    right = Q + precision * mean
    f: Tensor = torch.linalg.solve(N, right)
    if signed:
        return f
    out = torch.zeros_like(f, dtype=torch.bool)
    for _ in range(4):
        negative = f < 0
        if not bool(negative.any()):
            break
        out = out | negative
        keep = (~out).to(N.dtype)
        system = N * keep[:, :, None] * keep[:, None, :] + torch.diag_embed(1 - keep)
        f = torch.linalg.solve(system, right * keep)
    return f.clamp_min(0)


def normal_equations_of_survivors(
    head: Head,
    coefficient: Tensor,
    outside: Tensor,
    features: Tensor,
    present: Tensor,
    labels: Tensor,
    threshold: float,
) -> tuple[Tensor, Tensor]:
    """N (n, n, H) and Q (n, H) of min ‖∇W − outsideᵀ features − coefficientᵀ F‖² over F (n, H), and
    over the entries of ∇W that are not zero or should not be.

    `present` (n, H) are the features as last estimated. A removed entry that they put above the
    threshold says that they are wrong: it counts as one at the threshold. Every other removed entry
    says nothing. Of the label rows only the first of `labels`, the group's own, takes part, in
    double precision: it is a thousand times larger than the rest.
    """
    n, (C, H) = len(coefficient), head.grad_W.shape
    every = torch.cat([coefficient, outside]).index_fill(1, labels, 0.0).float()
    own, own_outside = coefficient[:, labels[0]], outside[:, labels[0]]
    current = torch.cat([present, features]).float()
    left, right = torch.triu_indices(n, n, device=every.device)
    inner = every[left] * every[right]
    cross = (every[:n, None] * every[None, n:]).flatten(0, 1)
    products = torch.cat([inner, cross])
    N, Q = features.new_empty(n, n, H), features.new_empty(n, H)
    step = max(1, _BLOCK // C)
    for columns in (slice(start, start + step) for start in range(0, H, step)):
        X = head.grad_W[:, columns].float()
        predicted = every.T @ current[:, columns]
        wrong = (X == 0) & (predicted.abs() > threshold)
        X = torch.where(wrong, predicted.sign() * threshold, X)
        found = (products @ (X != 0).float()).double()
        N[left, right, columns] = found[: len(left)]
        N[right, left, columns] = found[: len(left)]
        others = found[len(left) :].view(n, -1, X.shape[1])
        Q[:, columns] = (every[:n] @ X).double() - (others * features[:, columns]).sum(1)
    N += (own[:, None] * own)[:, :, None]
    Q += own[:, None] * (head.grad_W[labels[0]].double() - own_outside @ features)
    return N, Q
