"""Empirical Bayes: features are estimated together, by the distribution that their noisy estimates betray.

The estimates x of many features f are f plus an error of known spread. The mixture of point masses that makes all of them
most likely (Kiefer and Wolfowitz 1956, by EM over a histogram) stands for the prior, whatever its shape: a spike at zero and a
long tail after ReLU, a bell without it. The posterior mean under it is the estimate; its variance is the error to expect.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_REACH = 60.0  # standard deviations beyond which an estimate is as good as it gets
_PER_DEVIATION = 2.0  # point masses
_BINS = 8.0  # of the histogram, in a standard deviation
_ROUNDS = 100  # of expectation and maximization
_NEIGHBORHOODS = 8  # classes of columns by what the other samples show there
_ENOUGH = 500  # estimates that a distribution of their own is learned from


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


def denoise(estimates: Tensor, deviations: Tensor, *, signed: bool) -> Posterior:
    """Posterior of every feature, the prior learned from estimates of the same sample in columns of the same kind.

    Args:
        estimates: (g, H) features with Gaussian errors.
        deviations: (g,) the standard deviation of those errors.
        signed: whether features may be negative.
    """
    kinds = _kinds(estimates)
    mean, variance = torch.empty_like(estimates), torch.empty_like(estimates)
    for i, deviation in enumerate(deviations.tolist()):
        for kind in range(int(kinds[i].max()) + 1):
            members = kinds[i] == kind
            if bool(members.any()):
                mean[i, members], variance[i, members] = _learn(estimates[i, members], deviation, signed=signed)
    return Posterior(mean, variance)


def looks_signed(estimates: Tensor, deviations: Tensor) -> bool:
    """Whether negative estimates are larger than their errors explain: features that never were behind a ReLU."""
    scaled = estimates / deviations[:, None].clamp_min(1e-300)
    below = scaled.clamp_max(0).square().mean(1)  # 1/2 for pure noise, less for non-negative features
    return bool((below > 0.6 + 6 / estimates.shape[1] ** 0.5).any())


def _kinds(estimates: Tensor) -> Tensor:
    """(g, H) for each sample the class of each column by the mean of the other samples there: batches share much."""
    g, H = estimates.shape
    number = min(_NEIGHBORHOODS, H // _ENOUGH)
    if g == 1 or number < 2:
        return torch.zeros(g, H, dtype=torch.long, device=estimates.device)
    others = estimates.sum(0, keepdim=True) - estimates
    return others.argsort(1).argsort(1) * number // H


def _learn(x: Tensor, deviation: float, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Posterior mean and variance for the estimates x (n,); those far out stay as they are."""
    if not deviation > 0:
        return x.clone(), torch.zeros_like(x)
    scaled = x / deviation
    if not bool((scaled.abs() <= _REACH).any()):
        return x.clone(), torch.full_like(x, deviation**2)
    low, high = max(float(scaled.min()), -_REACH), min(float(scaled.max()), _REACH)
    atoms = _grid(low if signed else 0.0, max(high, 0.0), _PER_DEVIATION, x)
    centers = _grid(low, high, _BINS, x)
    place = (scaled - centers[0]) * _BINS
    bins = place.round().long().clamp(0, len(centers) - 1)
    inside = (scaled >= low) & (scaled <= high)
    counts = torch.bincount(bins[inside], minlength=len(centers)).to(x.dtype)
    likelihood = torch.exp(-0.5 * (centers[:, None] - atoms).square()) + 1e-14
    weight = torch.full_like(atoms, 1 / len(atoms))
    for _ in range(_ROUNDS):
        weight = weight * (likelihood.T @ (counts / (likelihood @ weight))) / counts.sum()
    joint = likelihood * weight
    joint = joint / joint.sum(1, keepdim=True)
    mean = joint @ atoms
    variance = (joint @ atoms.square() - mean.square()).clamp_min(0)
    near = inside & (scaled < _REACH - 4) & (scaled > 4 - _REACH)
    left = place.floor().long().clamp(0, max(len(centers) - 2, 0))
    right = (left + 1).clamp_max(len(centers) - 1)
    part = (place - left).clamp(0, 1)
    found = torch.where(near, mean[left] * (1 - part) + mean[right] * part, scaled)
    return found * deviation, torch.where(near, variance[bins], torch.ones_like(x)) * deviation**2


def _grid(low: float, high: float, density: float, like: Tensor) -> Tensor:
    """Points from `low` to `high` or a little beyond, `density` of them in a unit."""
    number = int((high - low) * density) + 2
    return low + torch.arange(number, dtype=like.dtype, device=like.device) / density
