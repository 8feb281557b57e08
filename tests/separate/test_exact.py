"""The exact solver on real networks: every value is compared with the truth after assignment."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from support.head_cases import (
    NOTHING,
    assert_exact,
    backbone_features,
    case,
    feature_error,
    one_hot,
    resnet_case,
)
from unsum.knowledge import Knowledge
from unsum.separate.exact import exact

HARD = {
    "one": [3],
    "four of eight": [5, 5, 5, 5, 1, 2, 3, 9],
    "all identical": [7] * 8,
    "distinct": list(range(16)),
    "sixteen identical": [0] * 16,
}


@pytest.mark.parametrize("labels", HARD.values(), ids=HARD)
@pytest.mark.parametrize(("pooled", "train"), [(True, True), (True, False), (False, True)])
def test_hard_labels_with_nothing_given(labels: list[int], pooled: bool, train: bool) -> None:
    train = train and len(labels) > 1
    truth = resnet_case(labels, 100, pooled=pooled, train=train)
    assert_exact(exact(truth.head, NOTHING, seed=0), truth)


@pytest.mark.parametrize(("B", "classes"), [(4, 16), (16, 64), (8, 1000), (2, 10)])
def test_other_numbers_of_classes(B: int, classes: int) -> None:
    truth = resnet_case([0] * (B // 2) + list(range(1, B - B // 2 + 1)), classes)
    assert_exact(exact(truth.head, NOTHING, seed=0), truth)


def test_granted_labels_keep_their_order() -> None:
    truth = resnet_case([9, 2, 9, 4], 50)
    leak = exact(truth.head, Knowledge(labels=torch.tensor([9, 2, 9, 4])), seed=0)
    assert leak.labels.tolist() == [9, 2, 9, 4]
    assert_exact(leak, truth)


def test_granted_batch_size_is_used() -> None:
    truth = resnet_case([9, 2, 9, 4], 50)
    assert_exact(exact(truth.head, Knowledge(batch_size=4), seed=0), truth)


@pytest.mark.parametrize("scale", [0.037, 250.0])
def test_scaled_gradient(scale: float) -> None:
    features = backbone_features(8)
    truth = case(features, nn.Linear(512, 100), one_hot([5, 5, 5, 5, 1, 2, 3, 9], 100), scale=scale)
    leak = exact(truth.head, NOTHING, seed=0)
    assert leak.scale == pytest.approx(scale, rel=1e-4)
    assert_exact(leak, truth)


def test_same_seed_same_answer() -> None:
    truth = resnet_case([5, 5, 5, 1], 40)
    first, second = (exact(truth.head, NOTHING, seed=3) for _ in range(2))
    assert torch.equal(first.features, second.features)


def test_gaussian_noise_is_noticed_and_not_called_exact() -> None:
    truth = resnet_case(list(range(8)), 100)
    torch.manual_seed(1)
    noisy = dataclasses.replace(
        truth.head,
        grad_W=truth.head.grad_W + 0.01 * torch.randn_like(truth.head.grad_W),
        grad_b=truth.head.grad_b + 0.01 * torch.randn(100),
    )
    leak = exact(noisy, NOTHING, seed=0)
    assert not leak.exact
    assert sorted(leak.labels.tolist()) == list(range(8))
    assert feature_error(leak, truth) < 2 * leak.predicted_error < 0.5
    assert any("Noise" in note for note in leak.notes)


def test_pruned_gradient_is_not_called_exact() -> None:
    truth = resnet_case(list(range(8)), 100)

    def prune(gradient: Tensor) -> Tensor:
        return gradient * (gradient.abs() > gradient.abs().flatten().quantile(0.99))

    pruned = dataclasses.replace(
        truth.head, grad_W=prune(truth.head.grad_W), grad_b=prune(truth.head.grad_b)
    )
    assert not exact(pruned, NOTHING, seed=0).exact
    assert exact(truth.head, NOTHING, seed=0).exact


@pytest.mark.parametrize(
    "knowledge", [NOTHING, Knowledge(batch_size=3), Knowledge(labels=torch.tensor([1, 2]))]
)
def test_zero_gradient(knowledge: Knowledge) -> None:
    truth = resnet_case([1, 2], 10)
    head = dataclasses.replace(truth.head, grad_W=torch.zeros(10, 512), grad_b=torch.zeros(10))
    leak = exact(head, knowledge, seed=0)
    assert not leak.exact
    assert leak.predicted_error == float("inf")
    assert leak.features.shape == (knowledge.known_batch_size or 1, 512)
    assert "zero" in leak.notes[0]
