"""From groups to samples: groups of one label are split where the gradient allows it, else every
member is the mean.

Samples of one label told apart: in turn their features, with the softmax known, and their softmax,
with the features.

The softmax follows from the posterior mean of the features through W, half-way in each turn,
because both err together and full steps overshoot. The last turn, which weighs the largest sets,
counts.

After a ReLU few samples of a batch have a given feature at all. For a set S of active samples, with
features f_S of mean 1/rate and a Gaussian likelihood exp(qᵀf − fᵀNf/2), the evidence is that of a
least-squares fit on S alone; all small sets are weighed by it, column by column. The label row pins
the sum of f, the other rows only hint at its owner; together with S being small that is often
enough.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.head import Head
from unsum.separate.adaptive.batch import Groups
from unsum.separate.adaptive.prior import Posterior
from unsum.separate.adaptive.recognize import RecognizedDefense
from unsum.separate.adaptive.rounds import (
    GroupFit,
    errors_of,
    logits_of,
    normal_equations_of_survivors,
)
from unsum.separate.exact.starts import hunt_corners

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
    head: Head,
    batch: Groups,
    defense: RecognizedDefense,
    fit: GroupFit,
    starts: Callable[[], Tensor] | None = None,
) -> ToldApart:
    """Every sample of the batch; `starts` may give rough softmax rows (B, C) of all samples in the
    order of their labels."""
    first = 0
    features, logits, errors, merged = [], [], [], []
    expected = member_errors(fit, batch)
    for group, count in enumerate(batch.counts.tolist()):
        members = list(range(first, first + count))
        found = None
        if 2 <= count <= MOST_MEMBERS and not fit.signed:
            P = hunt_probabilities(head, batch, group) if defense.kind == "pruned" else None
            P = starts()[members] if P is None and starts is not None else P
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
    told = ToldApart(
        batch.members, torch.cat(features), torch.cat(logits), torch.cat(errors), merged
    )
    return (
        told
        if fit.unseen is None or not len(batch.chances)
        else _doubted(told, batch.chances, fit.unseen)
    )


def _doubted(told: ToldApart, chances: Tensor, unseen: Posterior) -> ToldApart:
    """The posterior means where labels are uncertain: of a label that nobody carries, the answer is
    for a sample of which nothing was seen."""
    right = chances[:, None]
    size = told.features.square().sum(1)
    # of the posterior's mean
    wrong = told.errors.square() * size / (1 - told.errors.square()).clamp_min(1e-12)
    apart = (told.features - unseen.mean).square().sum(1)
    features = right * told.features + (1 - right) * unseen.mean
    variance = chances * wrong + (1 - chances) * (float(unseen.variance.sum()) + chances * apart)
    errors = (variance / (variance + features.square().sum(1)).clamp_min(1e-300)).sqrt()
    return replace(told, features=features, errors=errors)


def member_errors(fit: GroupFit, batch: Groups) -> Tensor:
    """(g,) the expected relative error of one sample: that of its group's mean, and its distance
    from that mean.

    With n samples of cosine c, the mean has the squared length (1 + (n − 1) c)/n of a sample's.
    """
    own = fit.posterior.relative_errors
    n = batch.counts.double()
    c = _likeness(fit.posterior.mean, int(batch.counts.max()))
    mean_length = (1 + (n - 1) * c) / n
    return (own.square() * mean_length + (1 - mean_length)).clamp(0, 4).sqrt()


def _likeness(features: Tensor, members: int) -> float:
    """The cosine of two samples of one group, guessed: the median between groups, or what their
    sparsity makes of it.

    Of features that are exponential where they are not zero, a share a, independent ones have the
    cosine a/2.
    """
    if len(features) < 2:
        silent = float((features < 0.1 * features.mean()).double().mean())
        return float(1 - silent ** (1 / members)) / 2
    unit = features / features.norm(dim=1, keepdim=True).clamp_min(1e-300)
    upper = torch.triu_indices(len(unit), len(unit), 1, device=unit.device)
    return min(max(float((unit @ unit.T)[upper[0], upper[1]].median()), 0.0), 1.0)


def hunt_probabilities(head: Head, batch: Groups, group: int) -> Tensor | None:
    """(n, C) rough softmax rows of a group's samples in a pruned gradient, or None where too few
    columns tell.

    A column that one sample alone fills, over its label row's entry, is the sample's own p_c / (1 −
    p_y). Others are mixtures: convex combinations, so that the pure ones are corners, and
    successive projection finds corners. No weights are needed for it.
    """
    n, label = int(batch.counts[group]), int(batch.labels[group])
    survivors = (head.grad_W != 0).sum(0)
    others = batch.labels[batch.labels != label]
    alone = (head.grad_W[label] < 0) & (head.grad_W[others] >= 0).all(0)
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


_TURNS = (2, 2, 2, 2, 2, 2, 3, 3)  # the largest sets that are weighed: small ones lead the way
# of the threshold: what the softmax's own error makes of a surviving entry, first and last
_ROUGH = (0.3, 0.2)
_DAMPING = 0.5  # share of the old logits that each turn keeps
_CROWDED = 0.8  # share of columns that fill the largest sets, beyond which features are not sparse
# precision, in units of the prior's rate, that keeps a feature nothing tells about from infinity
_LOOSE = 0.05
_BLOCK = 1 << 15  # columns at a time
MOST_MEMBERS = 12  # of a group, beyond which there are too many sets


def split(
    head: Head, batch: Groups, defense: RecognizedDefense, fit: GroupFit, group: int, P: Tensor
) -> tuple[Posterior, Tensor] | None:
    """Features and logits of a group's samples from a rough softmax P (n, C); None where features
    are not sparse."""
    threshold, first, last = defense.threshold, defense.sigma, defense.sigma
    if threshold > 0:
        first, last = (rough * threshold for rough in _ROUGH)
    rest = [other for other in range(len(batch.labels)) if other != group]
    features, mean = fit.posterior.mean[rest], fit.posterior.mean[group]
    alpha, label = batch.alpha(head.reduction), batch.labels[group]
    outside = alpha * errors_of(head, batch, defense, fit.logits.softmax(1))[rest]
    Y = torch.nn.functional.one_hot(label, head.classes).double()
    labels = torch.cat([label[None], batch.labels[batch.labels != label]])
    live = (head.grad_W[label] < 0).nonzero()[:, 0]  # where the label row was pruned, all are small
    if threshold > 0 and len(live) == 0:  # nothing of it was left
        return None
    silent = head.grad_W[label] >= 0 if threshold > 0 else mean < 0.1 * mean.mean()
    # not silent in all of its members
    active = min(max(1 - float(silent.double().mean()) ** (1 / len(P)), 0.02), 0.95)
    sparsity = Sparsity(active, max(float(mean.mean()) / active, 1e-12))
    Z, present = P.log(), mean.repeat(len(P), 1)
    for turn, largest in enumerate(_TURNS):
        deviation = first * (last / first) ** (turn / (len(_TURNS) - 1))
        coefficient = alpha * (Z.softmax(1) - Y)
        if threshold > 0:
            N, Q = normal_equations_of_survivors(
                head, coefficient, outside, features, present, labels, threshold
            )
            N, Q = N[:, :, live], Q[:, live]
        else:
            N = coefficient @ coefficient.T
            Q = head.mixed_rows(coefficient) - (coefficient @ outside.T) @ features
        posterior, evidence, crowded = weigh(N / deviation**2, Q / deviation**2, sparsity, largest)
        if not math.isfinite(evidence) or (largest == _TURNS[-1] and crowded > _CROWDED):
            return None
        if threshold > 0:  # elsewhere every sample has the group's mean
            whole, spread = mean.repeat(len(P), 1), fit.posterior.variance[group].repeat(len(P), 1)
            whole[:, live], spread[:, live] = posterior.mean, posterior.variance
            posterior = Posterior(whole, spread)
        logits = logits_of(head, posterior.mean)
        Z, present = _DAMPING * Z + (1 - _DAMPING) * logits, posterior.mean
    return posterior, logits


@dataclass(frozen=True)
class Sparsity:
    """How likely a feature is not zero, and its mean then."""

    active: float
    size: float


def weigh(N: Tensor, Q: Tensor, sparsity: Sparsity, largest: int) -> tuple[Posterior, float, float]:
    """The posterior of a group's features, its log evidence (up to what does not depend on G), and
    the share of columns that need more active samples than are looked for.

    Args:
        N: (n, n) or (n, n, H) precision of the features, of all columns or of each.
        Q: (n, H) precision times estimate.
        largest: active samples in one column, at most; the work grows with its power.
    """
    H = Q.shape[1]
    mean, variance = torch.empty_like(Q), torch.empty_like(Q)
    evidence = crowded = 0.0
    for start in range(0, H, _BLOCK):
        columns = slice(start, min(start + _BLOCK, H))
        block = _weigh_block(
            N if N.ndim == 2 else N[:, :, columns], Q[:, columns], sparsity, largest
        )
        mean[:, columns], variance[:, columns] = block[0], block[1]
        evidence, crowded = evidence + block[2], crowded + block[3]
    return Posterior(mean, variance), evidence, crowded / H


def _weigh_block(
    N: Tensor, Q: Tensor, sparsity: Sparsity, largest: int
) -> tuple[Tensor, Tensor, float, float]:
    """Mean, variance, summed evidence and number of crowded columns."""
    n, H = Q.shape
    sets = [s for k in range(1, min(largest, n) + 1) for s in itertools.combinations(range(n), k)]
    odds = math.log(sparsity.active / (1 - sparsity.active)) - math.log(sparsity.size)
    fits = [_fit_set(N, Q, s, 1 / sparsity.size) for s in sets]
    logs = torch.stack(
        [Q.new_zeros(H), *(fit[0] + len(s) * odds for fit, s in zip(fits, sets, strict=True))]
    )
    total = torch.logsumexp(logs, 0)
    weights = torch.exp(logs - total)[1:]
    mean, second = torch.zeros_like(Q), torch.zeros_like(Q)
    crowded = 0.0
    for weight, (_, values, spreads), members in zip(weights, fits, sets, strict=True):
        crowded += float(weight.sum()) if len(members) == largest < n else 0.0
        for i, value, spread in zip(members, values, spreads, strict=True):
            mean[i] += weight * value
            second[i] += weight * (value.square() + spread)
    evidence = float(total.sum()) + n * H * math.log(1 - sparsity.active)
    return mean, (second - mean.square()).clamp_min(0), evidence, crowded


def _fit_set(
    N: Tensor, Q: Tensor, members: tuple[int, ...], rate: float
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Evidence, means and variances of one set; a Cholesky factorization by hand, for all columns
    at once."""
    k = len(members)
    L: list[list[Tensor]] = []
    for a in range(k):
        row: list[Tensor] = []
        for c in range(a):
            inner = sum((row[m] * L[c][m] for m in range(c)), start=Q.new_zeros(()))
            row.append((N[members[a], members[c]] - inner) / L[c][c])
        own = N[members[a], members[a]] - sum((x.square() for x in row), start=Q.new_zeros(()))
        row.append((own + (_LOOSE * rate) ** 2).clamp_min(1e-12 * N[members[a], members[a]]).sqrt())
        L.append(row)
    z: list[Tensor] = []
    for a in range(k):
        known = sum((L[a][m] * z[m] for m in range(a)), start=Q.new_zeros(()))
        z.append((Q[members[a]] - rate - known) / L[a][a])
    inverse = _inverse_columns(L)
    values = [
        sum((inverse[m][a] * z[m] for m in range(a, k)), start=Q.new_zeros(())) for a in range(k)
    ]
    deviations = [
        sum((inverse[m][a].square() for m in range(a, k)), start=Q.new_zeros(())).sqrt()
        for a in range(k)
    ]
    evidence = sum((0.5 * z[a].square() - L[a][a].log() for a in range(k)), start=Q.new_zeros(()))
    evidence = evidence + 0.5 * k * math.log(2 * math.pi)
    total = sum(values, start=Q.new_zeros(())).clamp_min(0)
    # of the sum
    doubt = sum(
        (sum(row[1:], start=row[0]).square() for row in inverse), start=Q.new_zeros(())
    ).sqrt()
    most = total + 3 * doubt
    boxes = [
        _in_box(value, deviation, most) for value, deviation in zip(values, deviations, strict=True)
    ]
    # With the sum pinned by the label row, k features have k − 1 ways to leave the box.
    share = (k - 1) / k if k > 1 else 1.0
    evidence = evidence + share * sum((box[0] for box in boxes), start=Q.new_zeros(()))
    rescale = (
        total / sum((box[1] for box in boxes), start=Q.new_zeros(())).clamp_min(1e-300)
        if k > 1
        else 1.0
    )
    return evidence, [box[1] * rescale for box in boxes], [box[2] for box in boxes]


def _in_box(value: Tensor, deviation: Tensor, most: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log probability, mean and variance of a Gaussian between zero and the most a feature can
    be."""
    low, high = -value / deviation, (most - value) / deviation
    flip = low + high > 0  # to the side where the logarithms keep their digits
    a, b = torch.where(flip, -high, low), torch.where(flip, -low, high)
    upper = torch.special.log_ndtr(b)
    inside = upper + torch.log1p(-torch.exp((torch.special.log_ndtr(a) - upper).clamp_max(-1e-12)))
    at_a, at_b = (
        torch.exp(-0.5 * edge.square() - inside) / math.sqrt(2 * math.pi) for edge in (a, b)
    )
    shift = at_a - at_b
    variance = deviation.square() * (1 + a * at_a - b * at_b - shift.square()).clamp(0, 1)
    mean = value + deviation * torch.where(flip, -shift, shift)
    return inside, mean.clamp_min(0), variance


def _inverse_columns(L: list[list[Tensor]]) -> list[list[Tensor]]:
    """L⁻¹ of a lower triangular matrix of tensors, row by row."""
    inverse: list[list[Tensor]] = []
    for a in range(len(L)):
        left = [
            sum((L[a][m] * inverse[m][c] for m in range(c, a)), start=L[a][a].new_zeros(()))
            for c in range(a)
        ]
        inverse.append([*(-part / L[a][a] for part in left), 1 / L[a][a]])
    return inverse
