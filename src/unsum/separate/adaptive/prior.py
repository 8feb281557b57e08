"""Empirical Bayes: features are estimated together, by a prior that their noisy estimates and
public inputs share.

The estimates x of many features f are f plus an error of known spread. The mixture of point masses
that makes all of them most likely (Kiefer and Wolfowitz 1956, by EM over a histogram) stands for
the prior, whatever its shape: a spike at zero and a long tail after ReLU, a bell without it. The
posterior mean under it is the estimate; its variance is the error to expect.

Features of public inputs count as a few estimates without an error (a Dirichlet prior on the
mixture's weights). Where noise is small, the update's own estimates outnumber them. Where noise is
large, estimates hold next to nothing about the mixture, which stays that of public inputs: the
posterior mean degrades to their mean and never to a fit of the noise.

A mixture takes every feature for itself. Where public inputs show that features are correlated
(`Scatter`), the linear posterior under that covariance, of a size that suits the estimates, stands
against it: the one under which the estimates are likelier counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.labels.feature_prior import FeaturePrior
from unsum.labels.scatter import Scatter

_REACH = 60.0  # standard deviations beyond which an estimate is as good as it gets
_PER_DEVIATION = 2.0  # point masses
_BINS = 8.0  # of the histogram, in a standard deviation
_ROUNDS = 100  # of expectation and maximization
_NEIGHBORHOODS = 8  # classes of columns by what the other samples show there
_ENOUGH = 500  # estimates that a distribution of their own is learned from
# [√estimates] that the features of public inputs count as, at least. Noise pulls a mixture's mean
# by as much as √n estimates do, and twice that keeps it in its place up to four deviations. n
# estimates whose signal is r times their noise have as much to say about the mixture as n r
# features; where r is small, public features count as n/r.
_WORTH = 2.0
# [nats] of evidence by which one distribution of all columns must explain the estimates better than
# one beside the mean of each. Chosen by: arbitrary, odds of 150
_AGAINST = 5.0
# [deviations] of the estimates' mean square, from which they are larger than noise alone
_CLEAR = 5.0
# [1] times the largest public feature, that no feature of the client's is expected to exceed
_BEYOND = 4.0
# [share] of the mixture that starts where no public feature is. Chosen by: arbitrary, EM changes it
_START = 0.01
# [share] of features' variance that a batch has in common. Chosen by: measurement (embedded photos)
_SHARED = 0.02
# [public features] point masses where they lie closer than the noise. Chosen by: arbitrary budget
_QUANTILES = 48
# [public features] enough to show how all are distributed. Chosen by: arbitrary budget
_SEEN = 1 << 13
# [1] variance of the client's features over public ones; steps of √2. Chosen by: arbitrary, squares
# of `_SMALLEST` to `_LARGEST`
_USUAL_SIZE = (
    1.0  # [nats] deviation of that variance. Chosen by: `_USUAL` of templates, squared sizes
)
_SIZES = tuple(2.0 ** (k / 2) for k in range(-12, 13))
# [1] size of the client's features over public ones, beyond which it is no size
_SMALLEST, _LARGEST = 1 / 8, 8.0


@dataclass(frozen=True)
class Posterior:
    """(g, H) mean and variance of every feature."""

    mean: Tensor
    variance: Tensor

    @property
    def relative_errors(self) -> Tensor:
        """(g,) the expected error of each row over its expected length."""
        wrong = self.variance.sum(1)
        return (wrong / (wrong + self.mean.square().sum(1)).clamp_min(1e-300)).sqrt()


def denoise(
    estimates: Tensor, deviations: Tensor, *, signed: bool, prior: FeaturePrior | None = None
) -> Posterior:
    """Posterior of every feature, the prior learned from estimates of the same sample in columns of
    the same kind.

    Args:
        estimates: (g, H) features with Gaussian errors.
        deviations: (g,) the standard deviation of those errors.
        signed: whether features may be negative.
        prior: features of public inputs; where there are none, features are expected near zero.
    """
    expected = None if prior is None else unseen(prior)
    views = (
        estimates.new_empty(0, estimates.shape[1]) if prior is None else prior.views.to(estimates)
    )
    kinds = _kinds(estimates, deviations, expected)
    mean, variance = torch.empty_like(estimates), torch.empty_like(estimates)
    for i, deviation in enumerate(deviations.tolist()):
        evidence: float | None = 0.0
        for kind in range(int(kinds[i].max()) + 1):
            members = kinds[i] == kind
            if bool(members.any()):
                known = views[:, members]
                usual = None if expected is None else expected.mean[0, members]
                learned = _learn(
                    estimates[i, members],
                    deviation,
                    known,
                    usual,
                    signed=signed,
                    columns=estimates.shape[1],
                )
                mean[i, members], variance[i, members] = learned.posterior
                evidence = _both(evidence, learned.evidence)
        if prior is not None and prior.scatter is not None and evidence is not None:
            linear = _correlated(estimates[i] - prior.mean, deviation, prior.scatter)
            if linear.evidence is not None and linear.evidence > evidence:
                found = prior.mean + linear.posterior[0]
                mean[i] = found if signed else found.clamp_min(0)
                variance[i] = linear.posterior[1]
    return Posterior(mean, variance)


def _correlated(x: Tensor, deviation: float, scatter: Scatter) -> _Mixture:
    """Posterior of what the estimates (H,) are more than their mean, and its evidence over that of
    noise alone, on average over sizes of features with the evidence of each."""
    noise = deviation**2
    if not noise > 0:
        return _Mixture((x.clone(), torch.zeros_like(x)), None)
    y = scatter.rotate(x[None])[0]
    evidence, kept = list[float](), list[Tensor]()
    for size in _SIZES:
        signal = scatter.variances * size / noise
        kept.append(signal / (1 + signal))
        # y²/v − y²/(v + λ) is y²/v times the share λ/(v + λ) that is kept
        likelier = 0.5 * float((kept[-1] * y.square() / noise - signal.log1p()).sum())
        evidence.append(likelier - 0.5 * (math.log(size) / _USUAL_SIZE) ** 2)
    logs = torch.tensor(evidence, dtype=torch.float64)
    total = float(logs.logsumexp(0)) - math.log(len(_SIZES))
    weights = logs.softmax(0).tolist()
    share = sum((w * one for w, one in zip(weights, kept, strict=True)), torch.zeros_like(y))
    error = (noise * share).mean().expand_as(x)
    # next to what noise alone has: a mixture is weighed by it as well
    base = -0.5 * float(x.square().sum()) / noise
    return _Mixture((scatter.back((share * y)[None])[0], error), total + base)


def _both(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def unseen(prior: FeaturePrior) -> Posterior:
    """(1, H) what is expected of a sample of which nothing was seen."""
    return Posterior(prior.mean[None], (prior.views - prior.mean).square().mean(0, keepdim=True))


def size_of(
    estimates: Tensor, deviations: Tensor, prior: FeaturePrior, sure: Tensor | None = None
) -> float:
    """How large the samples' features are, in those of public inputs: least squares along their
    mean, with a prior of 1 ± `prior.spread`.

    Rows of wrong labels are chosen because they are large, so that estimates count with the chance
    (g,) that their labels are right; without `sure`, in full.
    """
    square = float(prior.mean.square().sum())
    if square == 0:
        return 1.0
    found = (estimates @ prior.mean.to(estimates)) / square
    precision = (square / deviations.square().clamp_min(1e-300)).clamp_max(1e12)
    if sure is not None:
        precision = precision * sure.to(precision)
    before = 1 / prior.spread**2
    size = float((before + (precision * found).sum()) / (before + precision.sum()))
    return min(max(size, _SMALLEST), _LARGEST)


def looks_signed(estimates: Tensor, deviations: Tensor) -> bool:
    """Whether negative estimates are larger than their errors explain: features that never were
    behind a ReLU."""
    scaled = estimates / deviations[:, None].clamp_min(1e-300)
    # 1/2 for pure noise, less for non-negative features
    below = scaled.clamp_max(0).square().mean(1)
    return bool((below > 0.6 + 6 / estimates.shape[1] ** 0.5).any())


def _kinds(estimates: Tensor, deviations: Tensor, expected: Posterior | None) -> Tensor:
    """(g, H) for each sample the class of each column, by the mean of the other samples there and
    of public inputs: both share much with it. They are weighed by how well they are known."""
    g, H = estimates.shape
    number = min(_NEIGHBORHOODS, H // _ENOUGH)
    if number < 2 or (g == 1 and expected is None):
        return torch.zeros(g, H, dtype=torch.long, device=estimates.device)
    others = (estimates.sum(0, keepdim=True) - estimates) / max(g - 1, 1)
    if expected is not None:
        spread = float(expected.variance.mean())
        shared = float(expected.mean.var()) + _SHARED * spread
        noise = (deviations.square().sum() - deviations.square()) / max(g - 1, 1) ** 2
        doubt = noise + spread / max(g - 1, 1) if g > 1 else torch.full_like(deviations, torch.inf)
        weight = (shared / (shared + doubt).clamp_min(1e-300)).nan_to_num(0.0)[:, None]
        others = weight * others + (1 - weight) * expected.mean
    return others.argsort(1).argsort(1) * number // H


def _learn(
    x: Tensor, deviation: float, known: Tensor, usual: Tensor | None, *, signed: bool, columns: int
) -> _Mixture:
    """Posterior mean and variance for the estimates x (n,). Estimates far out stay as they are.

    Args:
        columns: H, of all features.
        known: (k, n) features of public inputs in these columns.
        usual: (n,) what is expected in each of the columns. Unless the estimates are clearly
            likelier without it, what is learned is how features differ from it.
    """
    if not deviation > 0:
        return _Mixture((x.clone(), torch.zeros_like(x)), None)
    if usual is None or not _louder(x, deviation, columns):
        shift = torch.zeros_like(x) if usual is None else usual
        return _mixed(x, deviation, known, shift, signed=signed, columns=columns)
    plain = _mixed(x, deviation, known, torch.zeros_like(x), signed=signed, columns=columns)
    if plain.evidence is None:  # far above the noise, where the prior is of no account
        return plain
    beside = _mixed(x, deviation, known, usual, signed=signed, columns=columns)
    if beside.evidence is not None and beside.evidence + _AGAINST > plain.evidence:
        return beside
    return plain


@dataclass(frozen=True)
class _Mixture:
    """Mean and variance (n,) under a mixture, and the log evidence that it was learned to; None
    where estimates far out are left out of that."""

    posterior: tuple[Tensor, Tensor]
    evidence: float | None


def _mixed(
    x: Tensor, deviation: float, known: Tensor, shift: Tensor, *, signed: bool, columns: int
) -> _Mixture:
    """Posterior of what the estimates x (n,) are more than `shift`, whose distribution is learned
    from them and from `known` (k, n)."""
    non_negative, noise = not signed, deviation**2
    if bool(shift.any()):
        known, signed = known - shift, True
    known, scaled = known.flatten(), (x - shift) / deviation
    # Where the estimates are no larger than noise, the largest of them are noise; features are like
    # public ones then, and zero where there are none.
    louder, excess = _louder(x - shift, deviation, columns), float(scaled.square().mean()) - 1
    if not bool((scaled.abs() <= _REACH).any()):
        return _Mixture((x.clone(), torch.full_like(x, noise)), None)
    low, high = max(float(scaled.min()), -_REACH), min(float(scaled.max()), _REACH)
    near = (
        known[:: max(1, len(known) // _SEEN)]
        .div(deviation)
        .clamp(-_REACH if signed else 0.0, _REACH)
    )
    most = _REACH if louder else _BEYOND * float(near.abs().max()) if len(near) else 0.0
    between = _grid(low if signed else 0.0, max(high, 0.0), _PER_DEVIATION, x)
    between = torch.cat([between[between.abs() <= most], between.new_zeros(1)])
    fine = (
        near.quantile(torch.linspace(0, 1, _QUANTILES, dtype=x.dtype, device=x.device))
        if len(near)
        else near
    )
    atoms = torch.cat([between, fine]).unique()
    weight, before = torch.full_like(atoms, 1 / len(atoms)), torch.zeros_like(atoms)
    if len(near):  # a start in every atom: what has no weight never gets any
        share = _shared_out(near, atoms)
        little = _START * min(1.0, float(near.square().mean().sqrt())) if louder else 0.0
        worth = max(_WORTH * len(x) ** 0.5, len(x) / max(excess, 1e-9))
        weight, before = (1 - little) * share + little * weight, worth * share
    centers = _grid(low, high, _BINS, x)
    place = (scaled - centers[0]) * _BINS
    bins = place.round().long().clamp(0, len(centers) - 1)
    inside = (scaled >= low) & (scaled <= high)
    counts = torch.bincount(bins[inside], minlength=len(centers)).to(x.dtype)
    likelihood = torch.exp(-0.5 * (centers[:, None] - atoms).square()) + 1e-14
    for _ in range(_ROUNDS if louder or not len(near) else 0):
        weight = weight * (likelihood.T @ (counts / (likelihood @ weight))) + before
        weight = weight / weight.sum()
    joint = likelihood * weight
    joint = joint / joint.sum(1, keepdim=True)
    mean = joint @ atoms
    variance = (joint @ atoms.square() - mean.square()).clamp_min(0)
    resolved = inside & (scaled < _REACH - 4) & (scaled > 4 - _REACH)
    left = place.floor().long().clamp(0, max(len(centers) - 2, 0))
    right = (left + 1).clamp_max(len(centers) - 1)
    part = (place - left).clamp(0, 1)
    found = torch.where(resolved, mean[left] * (1 - part) + mean[right] * part, scaled)
    found = found * deviation + shift
    spread = torch.where(resolved, variance[bins], torch.ones_like(x)) * noise
    evidence = float(counts @ (likelihood @ weight).clamp_min(1e-300).log())
    return _Mixture(
        (found.clamp_min(0) if non_negative else found, spread),
        evidence if bool(inside.all()) else None,
    )


def _louder(x: Tensor, deviation: float, columns: int) -> bool:
    """Whether the estimates are larger than their errors alone would be, whose size was measured on
    as many columns."""
    return float((x / deviation).square().mean()) - 1 > _CLEAR * (2 / len(x) + 2 / columns) ** 0.5


def _shared_out(values: Tensor, atoms: Tensor) -> Tensor:
    """(k,) the share of the values at each of the ascending atoms; a value between two goes to
    both, so that its mean stays."""
    right = torch.searchsorted(atoms, values).clamp(1, max(len(atoms) - 1, 1))
    shares = torch.zeros_like(atoms)
    if len(atoms) == 1:
        return shares + 1
    part = ((values - atoms[right - 1]) / (atoms[right] - atoms[right - 1])).clamp(0, 1)
    shares.index_add_(0, right, part)
    shares.index_add_(0, right - 1, 1 - part)
    return shares / len(values)


def _grid(low: float, high: float, density: float, like: Tensor) -> Tensor:
    """Points from `low` to `high` or a little beyond, `density` of them in a unit."""
    number = int((high - low) * density) + 2
    return low + torch.arange(number, dtype=like.dtype, device=like.device) / density
