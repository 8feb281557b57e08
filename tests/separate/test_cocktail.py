"""Cocktail Party: its negentropy on known distributions, what it is worth, and features out of the
last layer."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import unsum
from support.active_photos import cut
from support.long import long
from unsum import UnsumError
from unsum.separate.cocktail import (
    alike,
    descend,
    filtered,
    fixed_point,
    negentropy,
    scaled,
    weaker_sign,
    whitening,
)


def log_cosh(value: float) -> float:
    return math.log(math.cosh(value))


def expected(density: str) -> float:
    """E[log cosh s] of a distribution of zero mean and unit variance, by numerical integration."""
    root = math.sqrt(3)
    functions = {
        "normal": (lambda s: math.exp(-s * s / 2) / math.sqrt(2 * math.pi), -12, 12),
        "laplace": (lambda s: math.exp(-math.sqrt(2) * abs(s)) / math.sqrt(2), -40, 40),
        "uniform": (lambda _s: 1 / (2 * root), -root, root),
    }
    function, low, high = functions[density]
    return float(quad(lambda s: function(s) * log_cosh(s), low, high, limit=200)[0])


def sample(density: str, count: int = 400_000) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    share = (torch.arange(count, dtype=torch.float64) + 0.5) / count  # quantiles: no sampling error
    share = share[torch.randperm(count, generator=generator)]
    if density == "normal":
        return math.sqrt(2) * torch.erfinv(2 * share - 1)
    if density == "uniform":
        return math.sqrt(3) * (2 * share - 1)
    side = (share - 0.5).sign()
    return -side * torch.log1p(-2 * (share - 0.5).abs()) / math.sqrt(2)


@pytest.mark.parametrize("density", ["normal", "laplace", "uniform"])
def test_negentropy_of_known_distributions(density: str) -> None:
    value = float(negentropy(sample(density)[None])[0])
    exact = (expected(density) - expected("normal")) ** 2
    assert abs(value - exact) < 1e-6
    assert (value < 1e-8) == (density == "normal")  # zero for a Gaussian alone


def mixtures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sources as sparse as differences of photos are, and random mixtures of them."""
    generator = torch.Generator().manual_seed(seed)
    sources = torch.distributions.Laplace(0.0, 1.0).icdf(
        torch.rand(count, 4000, generator=generator).clamp(1e-6, 1 - 1e-6)
    )
    sources = sources.sign() * sources.abs() ** 1.7
    return sources, torch.randn(3 * count, count, generator=generator) @ sources


def agreement(found: Tensor, true: Tensor) -> float:
    """The least |correlation| of the best pairing."""
    table = torch.corrcoef(torch.cat([found.flatten(1).double(), true.flatten(1).double()]))[
        : len(found), len(found) :
    ].abs()
    return float(table[linear_sum_assignment(-table.numpy())].min())


@pytest.mark.parametrize("count", [4, *long(6)])
def test_without_negentropy_nothing_is_unmixed(count: int) -> None:
    """The same Adam from the same start: with the negentropy it finds the sources, without it stays
    where it was."""
    sources, rows = mixtures(count, seed=count)
    M = whitening(filtered(rows, "values"), count).float()
    Z = M @ filtered(rows, "values")
    start = torch.randn(count, count, generator=torch.Generator().manual_seed(1))
    found = {
        contrast: agreement(
            descend(
                start,
                Z,
                M @ rows,
                iterations=600,
                learning_rate=1e-2,
                contrast=contrast,
                decorrelation=1.0,
                temperature=5.0,
                sign=0.0,
            )
            @ Z,
            sources,
        )
        for contrast in (0.0, 100.0)
    }
    assert found[100.0] > 0.97
    assert found[0.0] < 0.85
    fixed = fixed_point(Z, torch.Generator().manual_seed(0))
    # the fixed point gives the same answer
    assert agreement(fixed @ Z, sources) > found[100.0] - 0.005


def test_parts_of_the_objective() -> None:
    unit = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    assert math.isclose(float(alike(unit, 5.0)), math.expm1(3.0), rel_tol=1e-5)
    assert float(alike(unit[:1], 5.0)) == 0.0
    assert math.isclose(float(weaker_sign(torch.tensor([[3.0, -1.0], [1.0, 1.0]]))), 0.25)


def test_the_bias_fixes_scale_and_sign() -> None:
    torch.manual_seed(0)
    S, G = torch.rand(5, 300).double(), torch.randn(12, 5).double()
    wrong = S * torch.tensor([2.0, -0.1, 7.0, -3.0, 1.0])[:, None]
    found, mixing = scaled(wrong, G @ S, G.sum(1))
    torch.testing.assert_close(found, S)
    torch.testing.assert_close(mixing, G)


def test_whitening_refuses_too_many() -> None:
    with pytest.raises(UnsumError, match="not a mixture of 4 different samples"):
        whitening(torch.randn(6, 2) @ torch.randn(2, 50), 4)
    with pytest.raises(UnsumError, match="in differences or in values"):
        filtered(torch.randn(2, 3), "pixels")


@pytest.mark.parametrize("same", [0, 8])
def test_features_of_the_default_model_whatever_the_labels(same: int) -> None:
    from unsum.client.capture import in_mode
    from unsum.data import embedded_batch
    from unsum.head import collect_features
    from unsum.models import load_model

    model, batch = (
        load_model("default", classes=100).model,
        embedded_batch(8, image_size=128, same_label=same),
    )
    update = unsum.capture(model, batch.images, batch.targets)
    with in_mode(model, True):
        features = collect_features(model, batch.images)
    scores = {
        domain: unsum.score(
            unsum.separate(model, update, "cocktail", batch_size=8, domain=domain),
            targets=batch.targets,
            features=features,
        )
        for domain in ("differences", "values")
    }
    assert scores["differences"]["feature_cosine"] > 0.998
    assert scores["differences"]["feature_error"] < 0.08  # the scale, too
    assert scores["differences"]["label_correct"] == 1.0
    assert scores["differences"]["feature_error"] < 0.8 * scores["values"]["feature_error"]
    if same:
        ratio = unsum.score(unsum.separate(model, update, "fgla", batch_size=8), features=features)
        assert ratio["feature_cosine"] < 0.7


def test_a_head_without_bias_has_no_scale(net: nn.Sequential) -> None:
    x = torch.rand(3, 3, 16, 16)
    update = unsum.capture(net, x, torch.tensor([1, 2, 3]), defenses=unsum.DropBias())
    leak = unsum.separate(net, update, "cocktail", batch_size=3)
    assert any("the scale of every sample's features is a guess" in note for note in leak.notes)
    torch.testing.assert_close(leak.features.square().mean(1), torch.ones(3))
    with pytest.raises(UnsumError, match="needs the batch size"):
        unsum.separate(net, update, "cocktail")
    with pytest.raises(UnsumError, match="more classes than samples"):
        unsum.separate(net, update, "cocktail", batch_size=40)
    with pytest.raises(UnsumError, match="different samples and not of 9"):
        unsum.separate(net, update, "cocktail", batch_size=9)


def test_sixteen_photos_out_of_a_first_layer() -> None:
    torch.manual_seed(0)
    photos = cut(16, seed=9)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 128), nn.ReLU(), nn.Linear(128, 40))
    update = unsum.capture(model, photos, torch.arange(16))
    peeled = unsum.peel(model, update, method="cocktail", batch_size=16)
    assert agreement(peeled.inputs, photos) > 0.9
    apart = (
        torch.cdist(peeled.inputs.flatten(1).double(), photos.flatten(1).double()).min(0).values
        / (3 * 32 * 32) ** 0.5
    )
    assert float(-20 * apart.log10().mean()) > 25  # dB: scale and offset come from the bias
    pixels = unsum.peel(model, update, method="cocktail", batch_size=16, domain="values")
    assert agreement(pixels.inputs, photos) < 0.7
    with pytest.raises(UnsumError, match="There is no start"):
        unsum.peel(model, update, method="cocktail", batch_size=16, start="anywhere")
