"""Features under noise: the posterior mean against closed forms, and a sweep from next to no noise
to nothing else."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.long import long
from support.noisy_networks import (
    convolutional,
    dense,
    leakage,
    normalized,
    pictures,
    signed,
    smooth,
)
from unsum.head import collect_features
from unsum.labels.feature_prior import FeaturePrior
from unsum.separate.adaptive.prior import denoise, size_of

SWEEP = (1e-5, 1e-3, 1e-1, 1.0, 10.0)  # times the root mean square of a feature


def gaussian(mean: float, deviation: float, rows: int, columns: int, seed: int) -> Tensor:
    return (
        mean
        + deviation
        * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).double()
    )


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_gaussian_features_have_the_linear_posterior(noise: float) -> None:
    """f ~ N(1, 0.5²), x = f + N(0, noise²): E f = 1 + (x − 1) 0.5²/(0.5² + noise²), and its
    variance is 0.5² noise²/(…)."""
    views = gaussian(1.0, 0.5, 40, 2000, 0)
    prior = FeaturePrior(views, torch.ones(2000, dtype=torch.float64), 40, non_negative=False)
    features = gaussian(1.0, 0.5, 2, 2000, 1)
    x = features + gaussian(0.0, noise, 2, 2000, 2)
    posterior = denoise(x, torch.full((2,), noise, dtype=torch.float64), signed=True, prior=prior)
    share = 0.25 / (0.25 + noise**2)
    expected = 1 + share * (x - 1)
    assert float((posterior.mean - expected).square().mean()) < 0.03 * share * noise**2
    assert float(posterior.variance.mean()) == pytest.approx(share * noise**2, rel=0.1)
    error = float((posterior.mean - features).square().mean())
    assert error < 1.05 * share * noise**2  # what nobody can do better than, and 5 %


def test_the_posterior_goes_from_the_estimates_to_the_prior() -> None:
    views = gaussian(0.0, 1.0, 30, 3000, 0).clamp_min(0)
    prior = FeaturePrior(
        views, torch.full((3000,), 0.4, dtype=torch.float64), 30, non_negative=True
    )
    features = gaussian(0.0, 1.0, 3, 3000, 1).clamp_min(0)
    for noise, limit in ((1e-4, 1e-3), (30.0, 0.05)):
        x = features + gaussian(0.0, noise, 3, 3000, 2)
        posterior = denoise(
            x, torch.full((3,), noise, dtype=torch.float64), signed=False, prior=prior
        )
        target = features if noise < 1 else prior.mean.expand(3, -1)
        assert float((posterior.mean - target).square().mean().sqrt()) < limit


def test_no_noise_is_taken_for_features_where_nothing_is_known_of_them() -> None:
    x = gaussian(0.0, 5.0, 2, 3000, 0)
    posterior = denoise(x, torch.full((2,), 5.0, dtype=torch.float64), signed=True)
    assert float(posterior.mean.abs().max()) == 0


def test_the_size_of_features_is_least_squares_with_a_prior() -> None:
    mean = torch.tensor([3.0, 4.0], dtype=torch.float64)
    prior = FeaturePrior(mean.expand(2, -1), mean, 2, non_negative=True)
    x = 2 * mean[None]
    # as precise as 1 ± 1: half-way
    assert size_of(x, torch.tensor([5.0]).double(), prior) == pytest.approx(1.5)
    assert size_of(x, torch.tensor([1e-6]).double(), prior) == pytest.approx(2)
    # with half the chance that its label is right, half as precise; with none, the prior's
    sure = torch.tensor([0.5]).double()
    assert size_of(x, torch.tensor([5.0]).double(), prior, sure) == pytest.approx(4 / 3)
    assert size_of(x, torch.tensor([1e-6]).double(), prior, 0 * sure) == pytest.approx(1)
    # inputs that all have one size leave little open
    alike = replace(prior, spread=0.1)
    assert size_of(x, torch.tensor([5.0]).double(), alike) == pytest.approx(102 / 101)


def test_features_that_vary_little_about_their_mean_are_learned_beside_it() -> None:
    """Features of 0.5 in all columns and 0.02 about that from column to column, of which public
    inputs show all but 0.01: noise of 0.5 leaves these 0.01, where a distribution of all columns
    alike leaves 0.02."""
    usual = gaussian(0.5, 0.02, 1, 4000, 0)
    views = usual + gaussian(0.0, 0.01, 20, 4000, 1)
    prior = FeaturePrior(views, views.mean(0), 20, non_negative=True)
    features = usual + gaussian(0.0, 0.01, 6, 4000, 2)
    x = features + gaussian(0.0, 0.5, 6, 4000, 3)
    posterior = denoise(x, torch.full((6,), 0.5, dtype=torch.float64), signed=False, prior=prior)
    assert float((posterior.mean - features).square().mean(1).sqrt().max()) < 0.012


def read(
    model: nn.Module, images: Tensor, labels: Tensor, sigma: float, draw: int, **known: object
) -> unsum.Leak:
    update = unsum.capture(model, images, labels, train=model.training)
    torch.manual_seed(draw)
    return unsum.separate(model, unsum.Noise(sigma)(update), "adaptive", **known)


@pytest.mark.parametrize(
    ("build", "train"),
    [
        (convolutional, True),
        (signed, True),
        *long((convolutional, False), (smooth, True), (dense, False), (normalized, True)),
        *long((normalized, False)),
    ],
)
def test_noise_never_makes_an_answer_worse_than_none(build: object, train: bool) -> None:
    torch.manual_seed(0)
    model = build().train(train)
    labels = torch.tensor([2, 7, 7, 11, 20])
    images, public = pictures(5, 1), pictures(8, 2)
    features = collect_features(model, images).double()
    prior = collect_features(model, public).double().mean(0)
    before, scatter = 2.0, 0.0  # the mean at less noise, and its standard error
    for times in SWEEP:
        sigma, got = times * float(features.square().mean().sqrt()), []
        for draw in range(3):
            leak = read(model, images, labels, sigma, draw, batch_size=5, public=public)
            assert leak.batch_size <= 5
            assert not leak.exact
            got.append(leakage(leak.features, features, prior))
        mean = sum(got) / len(got)
        assert mean > -0.05, (times, got)
        assert mean < before + 0.05 + scatter, (times, got)
        before, scatter = mean, statistics.stdev(map(float, got)) / len(got) ** 0.5
        if times == SWEEP[0]:
            assert mean > 0.95
