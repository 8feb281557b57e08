"""The exact solver on real networks: every value is compared with the truth after assignment."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torchvision
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.exact import exact

NOTHING = Knowledge()


@dataclasses.dataclass(frozen=True)
class Case:
    head: Head
    features: Tensor
    targets: Tensor


def one_hot(labels: list[int] | Tensor, classes: int) -> Tensor:
    return nn.functional.one_hot(torch.as_tensor(labels), classes).double()


def case(features: Tensor, linear: nn.Linear, targets: Tensor, *, reduction: str = "mean", scale: float = 1.0) -> Case:
    """The head's gradient as a client computes it: float32 autograd."""
    linear.zero_grad()
    nn.functional.cross_entropy(linear(features), targets.float(), reduction=reduction).backward()
    W, b = linear.weight, linear.bias
    assert W.grad is not None
    grad_b = None if b is None or b.grad is None else b.grad.clone() * scale
    head = Head("fc", W.detach(), None if b is None else b.detach(), W.grad.clone() * scale, grad_b, reduction)
    return Case(head, features, targets)


def backbone_features(B: int, *, pooled: bool = True, train: bool = True, seed: int = 0) -> Tensor:
    """What an untrained ResNet-18 feeds its head for smooth random pictures."""
    torch.manual_seed(seed)
    model = torchvision.models.resnet18(weights=None).train(train)
    coarse = torch.randn(B, 3, 8, 8) * 2 + torch.randn(B, 3, 1, 1)
    pictures = nn.functional.interpolate(coarse, size=64, mode="bicubic")
    layers = list(model.children())[: -1 if pooled else -2]
    with torch.no_grad():
        return nn.Sequential(*layers)(pictures).flatten(1)


def resnet_case(labels: list[int], classes: int, *, smoothing: float = 0.0, bias: bool = True, **options: bool) -> Case:
    features = backbone_features(len(labels), **options)
    targets = one_hot(labels, classes) * (1 - smoothing) + smoothing / classes
    return case(features, nn.Linear(features.shape[1], classes, bias=bias), targets)


def order(leak: Leak, truth: Case) -> Tensor:
    """Row of the leak for each true sample."""
    assert leak.batch_size == len(truth.features)
    cost = torch.cdist(truth.features.double(), leak.features.double()) / truth.features.norm(dim=1)[:, None]
    return torch.as_tensor(linear_sum_assignment(cost + torch.cdist(truth.targets, leak.targets))[1])


def feature_error(leak: Leak, truth: Case) -> float:
    found = leak.features[order(leak, truth)]
    return float(((found - truth.features).norm(dim=1) / truth.features.norm(dim=1)).max())


def assert_exact(leak: Leak, truth: Case, *, features: float = 1e-4, targets: float = 1e-5) -> None:
    assert leak.batch_size == len(truth.features)
    assert feature_error(leak, truth) < features
    rows = order(leak, truth)
    assert float((leak.targets[rows] - truth.targets).abs().max()) < targets
    logits = truth.features @ truth.head.W.T + (0 if truth.head.b is None else truth.head.b)
    assert float((leak.logits[rows] - logits).abs().max()) < 100 * features
    assert leak.exact, leak.notes
    assert feature_error(leak, truth) < 10 * leak.predicted_error + 1e-6


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

    pruned = dataclasses.replace(truth.head, grad_W=prune(truth.head.grad_W), grad_b=prune(truth.head.grad_b))
    assert not exact(pruned, NOTHING, seed=0).exact


@pytest.mark.parametrize("knowledge", [NOTHING, Knowledge(batch_size=3), Knowledge(labels=torch.tensor([1, 2]))])
def test_zero_gradient(knowledge: Knowledge) -> None:
    truth = resnet_case([1, 2], 10)
    head = dataclasses.replace(truth.head, grad_W=torch.zeros(10, 512), grad_b=torch.zeros(10))
    leak = exact(head, knowledge, seed=0)
    assert not leak.exact
    assert leak.predicted_error == float("inf")
    assert leak.features.shape == (knowledge.known_batch_size or 1, 512)
    assert "zero" in leak.notes[0]
