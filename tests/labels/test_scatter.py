"""The covariance of features that few inputs show: against the covariance they were drawn from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.head import Head
from unsum.labels.feature_prior import FeaturePrior, feature_prior
from unsum.labels.probe import Probe
from unsum.labels.scatter import Scatter
from unsum.photos import cosines
from unsum.separate.adaptive.prior import denoise

CHANNELS, SIDE = 12, 8


def drawn(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features of correlated channels, smooth over places; and their covariance."""
    generator = torch.Generator().manual_seed(7)
    mix = torch.randn(CHANNELS, CHANNELS, generator=generator, dtype=torch.float64)
    mix *= 2.0 ** -torch.arange(CHANNELS, dtype=torch.float64)  # few channels hold most
    wave = 1 / (1 + torch.arange(SIDE, dtype=torch.float64))
    places = cosines(SIDE).T * wave
    smooth = torch.kron(places, places)
    generator.manual_seed(seed)
    white = torch.randn(count, CHANNELS, SIDE**2, generator=generator, dtype=torch.float64)
    features = (mix @ white @ smooth.T).flatten(1)
    return features, torch.kron(mix @ mix.T, smooth @ smooth.T)


def test_few_inputs_show_the_covariance() -> None:
    """Ten inputs of 768 features: their own covariance is off by all of the true one, in norm."""
    features, covariance = drawn(10, 1)
    mean = torch.zeros(features.shape[1], dtype=torch.float64)
    scatter = Scatter.of([features], mean, (CHANNELS, SIDE, SIDE), 10)
    assert scatter is not None
    rotation = scatter.rotate(torch.eye(len(mean), dtype=torch.float64)).T
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(len(mean), dtype=torch.float64))
    found = rotation.T @ (scatter.variances[:, None] * rotation)
    off = float((found - covariance).norm() / covariance.norm())
    sampled = features.T @ features / 10
    assert off < 0.5 < 0.9 < float((sampled - covariance).norm() / covariance.norm())
    assert float(scatter.variances.sum()) == pytest.approx(float(sampled.trace()))
    torch.testing.assert_close(scatter.back(scatter.rotate(features)), features)
    torch.testing.assert_close(scatter.scaled(3).variances, 9 * scatter.variances)


def test_features_without_places_are_drawn_to_an_even_covariance() -> None:
    """Five samples of white noise in fifty dimensions show no direction of their own."""
    features = torch.randn(5, 50, generator=torch.Generator().manual_seed(0)).double()
    scatter = Scatter.of([features], torch.zeros(50).double(), (50,), 5)
    assert scatter is not None
    assert float(scatter.variances.max() / scatter.variances.min()) < 2.5
    assert Scatter.of([features], torch.zeros(50).double(), (50,), 10**6).variances.min() < 1e-3  # type: ignore[union-attr]


def test_the_map_before_the_head_is_found() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip
    images = torch.rand(3, 3, 16, 16)
    head = Head.of(model, unsum.capture(model, images, torch.arange(3)))
    assert Probe(head, model, 1, 0).places(images) == (4, 4, 4)
    pooled = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 9)
    )
    head = Head.of(pooled, unsum.capture(pooled, images, torch.arange(3)))
    assert Probe(head, pooled, 1, 0).places(images) == (6, 1, 1)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(768, 20), nn.ReLU(), nn.Linear(20, 9))
    head = Head.of(dense, unsum.capture(dense, images, torch.arange(3)))
    assert Probe(head, dense, 1, 0).places(images) == (20,)
    prior = feature_prior(head, dense, images)
    assert prior is not None
    assert prior.scatter is not None
    scaled = prior.scaled(2).scatter
    assert scaled is not None
    torch.testing.assert_close(scaled.variances, 4 * prior.scatter.variances)


@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
def test_correlated_features_have_the_linear_posterior(noise: float) -> None:
    """Of Gaussian features nobody's error is below Σ λ σ²/(λ + σ²): from thirty inputs the
    posterior comes within a tenth of it, and the size of features is found, too."""
    views, covariance = drawn(30, 2)
    mean = torch.zeros(views.shape[1], dtype=torch.float64)
    scatter = Scatter.of([views], mean, (CHANNELS, SIDE, SIDE), 30)
    prior = FeaturePrior(views, mean, 30, non_negative=False, scatter=scatter)
    features = 2 * drawn(20, 3)[0]
    generator = torch.Generator().manual_seed(4)
    x = features + noise * torch.randn(features.shape, generator=generator, dtype=torch.float64)
    deviations = torch.full((20,), noise, dtype=torch.float64)
    posterior = denoise(x, deviations, signed=True, prior=prior)
    values = 4 * torch.linalg.eigvalsh(covariance).clamp_min(0)
    least = float((values * noise**2 / (values + noise**2)).sum())
    error = float((posterior.mean - features).square().sum(1).mean())
    assert error < 1.1 * least
    assert float(posterior.variance.sum(1).mean()) == pytest.approx(error, rel=0.2)
    alone = denoise(x, deviations, signed=True, prior=replace(prior, scatter=None))
    assert float((alone.mean - features).square().sum(1).mean()) > 1.5 * least
