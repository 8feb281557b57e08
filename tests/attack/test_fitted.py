"""Answers that fit the noise are none: by the error of least squares, and in `auto`."""

from __future__ import annotations

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
from unsum.attack.fitted import fits_noise, noise_in
from unsum.head import Head, collect_features
from unsum.labels.feature_prior import FeaturePrior
from unsum.leak import Leak
from unsum.separate.method import uncertified

LABELS = torch.tensor([2, 7, 7, 11, 20])


def least_squares(sigma: float) -> tuple[Head, Leak, Tensor]:
    """Three samples of known softmax rows, the unbiased features, and the true ones."""
    generator = torch.Generator().manual_seed(0)
    F = torch.rand(3, 4000, generator=generator).double()
    logits = torch.randn(3, 12, generator=generator).double()
    targets = nn.functional.one_hot(torch.tensor([1, 4, 4]), 12).double()
    errors = (logits.softmax(1) - targets) / 3
    noise = sigma * torch.randn(12, 4000, generator=generator).double()
    grad_W = errors.T @ F + noise
    head = Head("", torch.zeros(12, 4000, dtype=torch.float64), None, grad_W, None)
    found = torch.linalg.pinv(errors.T) @ grad_W
    return head, uncertified("mine", head, logits, targets, found, []), F


@pytest.mark.parametrize("sigma", [0.01, 0.3])
def test_the_noise_in_an_answer_is_the_error_of_least_squares(sigma: float) -> None:
    head, leak, F = least_squares(sigma)
    error = float((leak.features - F).square().mean())
    assert float(noise_in(head, leak).mean()) == pytest.approx(error, rel=0.1)
    each = (leak.features - F).square().mean(1)
    assert noise_in(head, leak).tolist() == pytest.approx(each.tolist(), rel=0.1)


def test_an_answer_fits_the_noise_where_features_differ_by_less() -> None:
    """Features that are even between 0 and 1 have a variance of 1/12."""
    views = torch.rand(50, 4000, generator=torch.Generator().manual_seed(1)).double()
    prior = FeaturePrior(views, views.mean(0), 50, non_negative=True)
    for sigma in (0.01, 0.03, 0.1, 0.3):
        head, leak, F = least_squares(sigma)
        says_less = bool(((leak.features - F).square().mean(1) > 1 / 12).all())
        assert bool(fits_noise(head, leak, prior)) == says_less
    head, leak, F = least_squares(0.01)
    large = uncertified("mine", head, leak.logits, leak.targets, 9 * F, [])
    assert "far larger" in fits_noise(head, large, prior)


def test_under_noise_auto_leaves_out_what_fits_it() -> None:
    torch.manual_seed(0)
    model = dense().train()
    images, public = pictures(5, 1), pictures(8, 2)
    size = float(collect_features(model, images).square().mean().sqrt())
    update = unsum.Noise(size)(unsum.capture(model, images, LABELS))
    leak = unsum.attack(model, update, batch_size=5, public=public)
    assert leak.method == "adaptive"
    refused = {one.method: one.refused for one in leak.tried if one.refused}
    assert "it is left out" in refused["exact"]
    answers = [one.method for one in leak.tried if one.leak is not None and one.leak.batch_size]
    assert answers == ["adaptive"]  # nor are separators asked again with labels of rules
    # who asks for it by name gets it
    alone = unsum.attack(model, update, "exact", batch_size=5)
    assert (alone.method, alone.batch_size, len(alone.tried)) == ("exact", 5, 1)


@pytest.mark.parametrize(
    ("known", "build", "train"),
    long(
        ("number", convolutional, True),
        ("number", signed, False),
        ("nothing", smooth, True),
        ("nothing", dense, False),
        ("nothing", normalized, True),
    ),
)
def test_no_attack_of_auto_reads_less_than_nothing(build: object, train: bool, known: str) -> None:
    """From next to no noise to nothing else; nor does any have more samples than were declared."""
    torch.manual_seed(0)
    model = build().train(train)
    images, public = pictures(5, 1), pictures(8, 2)
    features = collect_features(model, images).double()
    guess = collect_features(model, public).double().mean(0)
    update = unsum.capture(model, images, LABELS, train=train)
    size = 5 if known == "number" else None
    got: dict[str, list[float]] = {}
    for times in (1e-5, 1e-3, 1e-1, 1.0, 10.0):
        torch.manual_seed(0)
        noisy = unsum.Noise(times * float(features.square().mean().sqrt()))(update)
        leak = unsum.attack(model, noisy, batch_size=size, public=public, time_limit=5)
        answers = [one for one in leak.tried if one.leak is not None]
        assert size is None or max(one.leak.batch_size for one in answers if one.leak) <= size
        for one in answers:
            if one.at_head and one.leak is not None and one.leak.batch_size:
                got.setdefault(one.method, []).append(leakage(one.leak.features, features, guess))
    assert "adaptive" in got
    for method, values in got.items():
        assert sum(values) / len(values) > -0.05, (method, values)
