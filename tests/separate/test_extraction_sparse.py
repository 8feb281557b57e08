"""Crowded batches of a trained head, sample by sample: the zeros of pooled features supply the
equations that are missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.long import long
from support.starts import without_starts
from unsum.equation.observation import observe
from unsum.head import Head
from unsum.separate.exact.extraction_sparse import extract_sparse

C, H, B = 24, 256, 16


def trained_case(
    seed: int, *, pooled: int = 3, steps: int = 30
) -> tuple[nn.Linear, Tensor, Tensor]:
    """A trained head of 24 classes and 16 samples, whose features are means over `pooled` places
    after a ReLU.

    With three places one feature in eight is zero; `pooled` 0 stands for features that may be
    negative.
    """
    torch.manual_seed(seed)
    centers, labels = torch.randn(C, H), torch.randint(C, (600,))
    places = 0.8 * centers[labels] + torch.randn(max(pooled, 1), 600, H)
    features = (places.relu() if pooled else places).mean(0)
    head = nn.Linear(H, C)
    optimizer = torch.optim.Adam(head.parameters(), 3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features), labels).backward()
        optimizer.step()
    return head, features[:B], labels[:B]


@pytest.mark.parametrize("seed", [0, *long(2)])
def test_two_thirds_as_many_samples_as_classes_come_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, features, labels = trained_case(seed)
    without_starts(monkeypatch, "exchanged")
    leak = unsum.separate(head, unsum.capture(head, features, labels))
    assert leak.exact
    assert unsum.score(leak, features=features)["worst_feature_error"] < 1e-3
    assert leak.targets.argmax(1).sort().values.tolist() == labels.sort().values.tolist()


def test_nothing_else_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    head, features, labels = trained_case(0)
    without_starts(monkeypatch, "exchanged", "thinned")
    leak = unsum.separate(head, unsum.capture(head, features, labels))
    assert not leak.exact
    assert unsum.score(leak, features=features)["worst_feature_error"] > 0.1


def test_a_scaled_gradient_says_its_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    head, features, labels = trained_case(1)
    update = unsum.capture(head, features, labels)
    scaled = replace(
        update, gradients={name: 7 * value for name, value in update.gradients.items()}
    )
    without_starts(monkeypatch, "exchanged")
    leak = unsum.separate(head, scaled)
    assert leak.scale == pytest.approx(7, rel=1e-3)
    assert unsum.score(leak, features=features)["worst_feature_error"] < 1e-3


@pytest.mark.parametrize("seed", [3, *long(4, 5)])
def test_whatever_is_found_is_a_sample(seed: int) -> None:
    """Each on its own: a false one would take a direction from all that come after it."""
    head, features, labels = trained_case(seed)
    observation = observe(Head.of(head, unsum.capture(head, features, labels)), None)
    found = extract_sparse(observation, torch.Generator().manual_seed(0))
    assert found is not None
    distance, nearest = (
        torch.cdist(found.T @ observation.A, features.double()) / features.norm(dim=1)
    ).min(1)
    assert len(found.T) >= B // 2
    assert float(distance.max()) < 1e-3
    assert labels[nearest].tolist() == found.labels.tolist()


def test_features_without_zeros_give_none() -> None:
    head, features, labels = trained_case(0, pooled=0)
    observation = observe(Head.of(head, unsum.capture(head, features, labels)), None)
    assert extract_sparse(observation, torch.Generator().manual_seed(0)) is None


def test_it_is_not_tried_where_it_cannot_work() -> None:
    head, features, labels = trained_case(0)
    observation = observe(Head.of(head, unsum.capture(head, features, labels)), None)
    generator = torch.Generator().manual_seed(0)
    assert extract_sparse(replace(observation, grad_b=None), generator) is None
    assert (
        extract_sparse(
            replace(observation, noise=replace(observation.noise, relative=1e-4)), generator
        )
        is None
    )
