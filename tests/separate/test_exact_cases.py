"""The exact solver beyond hard labels on fresh heads: soft targets, no bias, trained models,
degenerate batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from support.head_cases import (
    NOTHING,
    PLAIN,
    Case,
    assert_exact,
    backbone_features,
    case,
    feature_error,
    one_hot,
    order,
    resnet_case,
    trained,
)
from support.long import long
from unsum.certify.candidate import reweighted
from unsum.equation.equation import Unknowns
from unsum.equation.observation import observe
from unsum.knowledge import Knowledge
from unsum.separate.exact import exact


def mixed_up(B: int, classes: int, smoothing: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(B)
    share = torch.rand(B, 1, generator=generator, dtype=torch.float64) * 0.8 + 0.1
    first, second = (
        one_hot(torch.randint(classes, (B,), generator=generator), classes) for _ in range(2)
    )
    return (share * first + (1 - share) * second) * (1 - smoothing) + smoothing / classes


def synthetic(labels: list[int], classes: int, features: int = 512, seed: int = 0) -> Case:
    torch.manual_seed(seed)
    F = torch.relu(torch.randn(features) + torch.randn(len(labels), features))
    return case(F, nn.Linear(features, classes), one_hot(labels, classes))


@pytest.mark.parametrize("B", [1, 8])
@pytest.mark.parametrize("bias", [True, False])
def test_label_smoothing_of_unknown_strength(B: int, bias: bool) -> None:
    truth = resnet_case(
        [4] * (B - B // 2) + list(range(B // 2)), 100, smoothing=0.1, bias=bias, train=B > 1
    )
    leak = exact(truth.head, PLAIN, seed=0)
    assert_exact(leak, truth)
    assert float(leak.targets.min()) * 100 == pytest.approx(0.1, abs=1e-4)


@pytest.mark.parametrize("seed", [3, 4])
def test_strong_smoothing_without_bias(seed: int) -> None:
    """A floor takes the same from every row; for seed 4 no start that leaves it out leads to the
    solution."""
    torch.manual_seed(seed)
    level, contrast = torch.rand(8, 1, 1), torch.rand(8, 48, 1) * torch.rand(8, 1, 1)
    x = (0.5 * level + contrast).expand(8, 48, 4).reshape(8, 192)
    for width, wider in ((192, 256), (256, 128)):
        x = torch.relu(x @ torch.randn(width, wider) * (2 / width) ** 0.5)
    linear = nn.Linear(128, 100, bias=False)
    nn.init.normal_(linear.weight, std=0.125)
    targets = one_hot([3, 3, 8, 20, 41, 50, 66, 90], 100) * 0.63 + 0.37 / 100
    truth = case(x, linear, targets)
    assert_exact(exact(truth.head, PLAIN, seed=0), truth)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_mixup(smoothing: float, bias: bool) -> None:
    truth = case(backbone_features(8), nn.Linear(512, 100, bias=bias), mixed_up(8, 100, smoothing))
    assert_exact(exact(truth.head, PLAIN, seed=0), truth, targets=1e-4)


@pytest.mark.parametrize("labels", [[3], [5, 5, 5, 5, 1, 2, 3, 9], [7] * 8])
def test_missing_bias_gradient(labels: list[int]) -> None:
    truth = resnet_case(labels, 100, train=len(labels) > 1)
    truth = dataclasses.replace(truth, head=dataclasses.replace(truth.head, grad_b=None))
    assert_exact(exact(truth.head, NOTHING, seed=0), truth)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sum_over_the_batch_and_scale_together(smoothing: float) -> None:
    targets = one_hot([5, 5, 5, 1, 2], 100) * (1 - smoothing) + smoothing / 100
    truth = case(backbone_features(5), nn.Linear(512, 100), targets, reduction="sum", scale=0.25)
    leak = exact(truth.head, NOTHING, seed=0)
    assert leak.scale == pytest.approx(0.25, rel=1e-4)
    assert_exact(leak, truth)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_error_follows_the_precision(dtype: torch.dtype, error: float) -> None:
    truth = resnet_case([5, 5, 5, 5, 1, 2, 3, 9], 100)
    coarse = dataclasses.replace(
        truth.head, grad_W=truth.head.grad_W.to(dtype), grad_b=truth.head.grad_b.to(dtype)
    )
    leak = exact(coarse, NOTHING, seed=0)
    assert sorted(leak.labels.tolist()) == [1, 2, 3, 5, 5, 5, 5, 9]
    assert feature_error(leak, truth) < error
    assert feature_error(leak, truth) < 2 * leak.predicted_error < 0.2


@pytest.mark.parametrize("seed", [0, *long(1)])
@pytest.mark.parametrize(("B", "confidence"), [(2, 2.0), (8, 1.0), (8, 2.0), (16, 1.5)])
def test_trained_models(B: int, confidence: float, seed: int) -> None:
    truth = trained(B, seed, confidence)
    assert_exact(exact(truth.head, NOTHING, seed=0), truth)


@pytest.mark.parametrize("seed", [0, *long(1)])
@pytest.mark.parametrize(("B", "confidence"), [(2, 2.0), (8, 1.5), (8, 2.0), (24, 2.0)])
def test_smoothed_labels_of_trained_models(B: int, confidence: float, seed: int) -> None:
    """Nearly every row of ∇b is negative, and rows of confident samples are not: signs alone name
    no label."""
    truth = trained(B, seed, confidence, smoothing=0.1)
    leak = exact(truth.head, NOTHING, seed=0)
    assert_exact(leak, truth)
    assert float(leak.targets.min()) * 200 == pytest.approx(0.1, abs=1e-4)


@pytest.mark.parametrize(
    ("B", "confidence", "seed"), [(6, 2.0, 0), *long((6, 2.0, 1), (12, 1.5, 0), (12, 1.5, 2))]
)
def test_mixed_labels_of_trained_models(B: int, confidence: float, seed: int) -> None:
    """Predictions of one sample hide the labels of another: rows of ∇b name neither."""
    truth = trained(B, seed, confidence, mixed=True)
    assert_exact(exact(truth.head, NOTHING, seed=0), truth)


@pytest.mark.parametrize(("B", "classes"), [(40, 400), (15, 20), (7, 10), *long((48, 100))])
def test_large_batches(B: int, classes: int) -> None:
    truth = synthetic([0] * (B // 4) + list(range(B - B // 4)), classes)
    assert_exact(exact(truth.head, NOTHING, seed=0), truth)


def test_fewer_features_than_samples() -> None:
    truth = synthetic([5, 5, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11], 100, features=8, seed=1)
    assert_exact(exact(truth.head, Knowledge(batch_size=12), seed=0), truth)
    # samples that resemble each other find no room to show in eight inputs
    leak = exact(truth.head, NOTHING, seed=0)
    assert feature_error(leak, truth) < 1e-4
    assert not leak.exact


def test_zero_initialized_head() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 50)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    labels = [5, 5, 5, 1, 2]
    truth = case(torch.randn(5, 64), linear, one_hot(labels, 50))
    leak = exact(truth.head, NOTHING, seed=0)
    means = torch.cat([truth.features[:3].mean(0).expand(3, -1), truth.features[3:]])
    assert leak.labels.sort().values.tolist() == sorted(labels)
    assert not leak.exact
    found = leak.features[order(leak, dataclasses.replace(truth, features=means))]
    assert float((found - means).norm() / means.norm()) < 1e-5
    assert any("mean" in note for note in leak.notes)


@pytest.mark.parametrize("seed", [0, 1, *long(2)])
def test_equal_rows_add_no_directions(seed: int) -> None:
    """Behind a zero head all unlabeled rows are one and the same; projecting it out leaves rounding
    of rounding."""
    torch.manual_seed(seed)
    linear = nn.Linear(768, 100)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    labels = [28, 35, 50, 95, 74, 73, 74, 40]
    truth = case(
        nn.functional.layer_norm(torch.randn(8, 768), (768,)), linear, one_hot(labels, 100)
    )
    leak = exact(truth.head, NOTHING, seed=0)
    assert sorted(leak.labels.tolist()) == sorted(labels)
    assert not leak.exact  # 74 twice: only their mean can be known


def test_zero_initialized_head_with_known_batch_size() -> None:
    linear = nn.Linear(64, 50)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    truth = case(torch.randn(4, 64), linear, one_hot([5, 1, 2, 9], 50))
    assert_exact(exact(truth.head, Knowledge(labels=torch.tensor([5, 1, 2, 9])), seed=0), truth)
    leak = exact(truth.head, Knowledge(batch_size=4), seed=0)
    assert feature_error(leak, truth) < 1e-4


def test_zero_initialized_head_does_not_tell_mixed_labels_from_hard_ones() -> None:
    """Its softmax answers everything alike: mixed samples with hard labels send the very gradient
    of these."""
    linear = nn.Linear(64, 50)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    labels = one_hot([5, 1, 2, 9], 50)
    truth = case(torch.randn(4, 64), linear, 0.7 * labels + 0.3 * labels.roll(1, 0))
    leak = exact(truth.head, Knowledge(batch_size=4), seed=0)
    assert feature_error(leak, truth) > 0.1
    assert not leak.exact
    assert any("may be mixed" in note for note in leak.notes)


@pytest.mark.parametrize("B", [64, *long(12)])
def test_as_many_samples_as_classes_is_admitted(B: int) -> None:
    truth = synthetic([index % 10 for index in range(B)], 10)
    leak = exact(truth.head, NOTHING, seed=0)
    assert not leak.exact
    assert leak.notes


def test_wrong_batch_size_is_noticed() -> None:
    truth = synthetic([1, 2, 3, 3], 50)
    for claimed in (2, 6):
        leak = exact(truth.head, Knowledge(batch_size=claimed), seed=0)
        assert not leak.exact
        assert leak.notes


def test_a_constant_added_to_all_biases_changes_nothing() -> None:
    truth = synthetic([5, 5, 1, 2], 40)
    assert truth.head.b is not None
    shifted = dataclasses.replace(truth.head, b=truth.head.b + 3)
    first, second = exact(truth.head, NOTHING, seed=0), exact(shifted, NOTHING, seed=0)
    assert torch.allclose(first.features, second.features, rtol=0, atol=1e-4)


def peaked(classes: int, target: Tensor, seed: int = 0) -> Case:
    """One sample of a network that is sure of something, behind a head without bias."""
    torch.manual_seed(seed)
    linear = nn.Linear(64, classes, bias=False)
    nn.init.uniform_(linear.weight, -1, 1)
    return case(torch.rand(1, 64), linear, target)


@pytest.mark.parametrize("seed", [0, *long(1)])
@pytest.mark.parametrize("share", [1.0, 0.505, 0.9])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_one_sample_without_bias_and_a_peaked_softmax(
    share: float, smoothing: float, seed: int
) -> None:
    """The soft-label paper's own case. At 0.505 two samples of hard label, with proportional
    features, nearly fit, too."""
    target = share * one_hot([3], 100) + (1 - share) * one_hot([8], 100)
    truth = peaked(100, target * (1 - smoothing) + smoothing / 100, seed)
    assert_exact(exact(truth.head, PLAIN, seed=0), truth, targets=1e-4)


def test_two_samples_are_not_claimed_where_one_with_a_mixed_label_fits() -> None:
    truth = synthetic([2, 5], 60)
    parallel = dataclasses.replace(
        truth, features=truth.features[:1] * torch.tensor([[1.0], [1.02]])
    )
    torch.manual_seed(0)
    parallel = case(parallel.features, nn.Linear(512, 60), one_hot([2, 5], 60))
    assert not exact(parallel.head, NOTHING, seed=0).exact
    assert exact(truth.head, NOTHING, seed=0).exact


@pytest.mark.parametrize("seed", [0, 1, *long(2)])
def test_a_sample_without_a_trace_leaves_a_doubt(seed: int) -> None:
    """Predicted with probability 1 it sends nothing, yet the mean over the batch counts it: the
    other's size is off."""
    torch.manual_seed(seed)
    linear = nn.Linear(64, 30)
    features = torch.rand(2, 64)
    with torch.no_grad():
        gap = linear(features)[0].max() - linear(features)[0, 5]
        linear.weight[5] += (10 + gap) * features[0] / features[0].square().sum()
        linear.weight[9] += 400 * (
            features[1] - features[1] @ features[0] / features[0].square().sum() * features[0]
        )
    truth = case(features, linear, one_hot([5, 9], 30))
    leak = exact(truth.head, NOTHING, seed=0)
    assert not leak.exact
    assert any("left no trace" in note for note in leak.notes)


def test_targets_beyond_probabilities_are_no_solution() -> None:
    truth = synthetic([5, 1], 40)
    observation = observe(truth.head, None)
    at = Unknowns(
        truth.features.double() @ observation.A.T,
        torch.zeros(()).double(),
        torch.tensor([0.5]).double().log(),
    )
    found = reweighted(observation, replace(observation.equation(), Y=truth.targets), at)
    assert found.explains
    beyond = replace(found, Y=found.Y + 0.002 * torch.sign(found.Y - 0.5))
    assert not beyond.explains
    assert found.better_than(beyond)


def test_pruned_bias_entries_are_no_labels() -> None:
    truth = synthetic([5, 5, 1, 2], 40)
    assert truth.head.grad_b is not None
    pruned = truth.head.grad_b * (truth.head.grad_b.abs() > truth.head.grad_b.abs().median())
    truth = dataclasses.replace(truth, head=dataclasses.replace(truth.head, grad_b=pruned))
    assert_exact(exact(truth.head, NOTHING, seed=0), truth)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_coarse_gradients_predict_their_own_error(dtype: torch.dtype) -> None:
    truth = synthetic([5, 5, 1, 2, 9, 30], 100)
    coarse = dataclasses.replace(
        truth.head, grad_W=truth.head.grad_W.to(dtype), grad_b=truth.head.grad_b.to(dtype)
    )
    leak = exact(coarse, NOTHING, seed=0)
    assert 0.4 < feature_error(leak, truth) / leak.predicted_error < 2.5


def test_targets_that_do_not_quite_sum_to_one_are_no_noise() -> None:
    truth = synthetic([5, 5, 1, 2], 400)
    targets = (truth.targets * 0.9 + 0.1 / 400) * (1 + 1e-6)
    torch.manual_seed(0)
    leak = exact(case(truth.features, nn.Linear(512, 400), targets).head, NOTHING, seed=0)
    assert leak.exact
    assert not any("Noise" in note for note in leak.notes)


DAMAGE = {
    "pruned": lambda gradient: gradient * (gradient.abs() > gradient.abs().flatten().quantile(0.9)),
    "signs": torch.sign,
    "noise only": lambda gradient: torch.randn(
        gradient.shape, generator=torch.Generator().manual_seed(0)
    ),
    "one row": lambda gradient: (
        gradient * (torch.arange(len(gradient)) == 0).view(-1, *[1] * (gradient.ndim - 1))
    ),
    "coarse": lambda gradient: (gradient * 50).round() / 50,
}


def test_the_gradient_that_is_damaged_below_is_claimed_as_it_was() -> None:
    case = synthetic([0, 1, 1], 10, 64)
    for knowledge in (NOTHING, Knowledge(batch_size=3), Knowledge(labels=torch.tensor([0, 1, 1]))):
        assert exact(case.head, knowledge, seed=0).exact


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize(
    ("classes", "features", "bias"),
    [
        *((10, 64, bias) for bias in ("kept", "zero", "missing")),
        *long((2, 4, "kept"), (2, 4, "missing"), (50, 1, "kept"), (50, 1, "missing")),
    ],
)
def test_damaged_gradients_neither_crash_nor_pass(
    damage: Callable[[Tensor], Tensor], classes: int, features: int, bias: str
) -> None:
    head = synthetic([0, 1, 1], classes, features).head
    assert head.grad_b is not None
    grad_b = {"kept": damage(head.grad_b), "zero": torch.zeros(classes), "missing": None}[bias]
    head = dataclasses.replace(head, grad_W=damage(head.grad_W), grad_b=grad_b)
    for knowledge in (NOTHING, Knowledge(batch_size=3), Knowledge(labels=torch.tensor([0, 1, 1]))):
        leak = exact(head, knowledge, seed=0)
        assert not leak.exact
        assert torch.isfinite(leak.features).all()
