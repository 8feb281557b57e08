"""Heads with their gradient and the truth behind it, and what an exact answer must satisfy."""

from __future__ import annotations

import dataclasses

import torch
import torchvision
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak

NOTHING = Knowledge()
# for heads without a bias, where a temperature would send the same
PLAIN = Knowledge(loss="cross-entropy")


@dataclasses.dataclass(frozen=True)
class Case:
    head: Head
    features: Tensor
    targets: Tensor


def one_hot(labels: list[int] | Tensor, classes: int) -> Tensor:
    return nn.functional.one_hot(torch.as_tensor(labels), classes).double()


def case(
    features: Tensor,
    linear: nn.Linear,
    targets: Tensor,
    *,
    reduction: str = "mean",
    scale: float = 1.0,
) -> Case:
    """The head's gradient as a client computes it: float32 autograd."""
    linear.zero_grad()
    nn.functional.cross_entropy(linear(features), targets.float(), reduction=reduction).backward()
    W, b = linear.weight, linear.bias
    assert W.grad is not None
    grad_b = None if b is None or b.grad is None else b.grad.clone() * scale
    head = Head(
        "fc",
        W.detach(),
        None if b is None else b.detach(),
        W.grad.clone() * scale,
        grad_b,
        reduction,
    )
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


def trained(
    B: int,
    seed: int,
    confidence: float,
    classes: int = 200,
    *,
    smoothing: float = 0.0,
    mixed: bool = False,
) -> Case:
    """A head whose rows point at class centers; some samples are confident, some wrong, as after
    training."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.relu(torch.randn(classes, 256, generator=generator))
    linear = nn.Linear(256, classes)
    with torch.no_grad():
        centered = centers - centers.mean(0)
        linear.weight.copy_(confidence * centered / centered.norm(dim=1, keepdim=True))
        linear.bias.zero_()
    labels = torch.randint(classes, (B,), generator=generator)
    noise = torch.randn(B, 256, generator=generator)
    features = torch.relu(0.6 * centers[labels] + 0.4 * centers.mean(0) + 0.4 * noise)
    share = torch.rand(B, 1, generator=generator).double() if mixed else torch.ones(B, 1).double()
    rows = share * one_hot(labels, classes) + (1 - share) * one_hot(labels.roll(1), classes)
    return case(features, linear, rows * (1 - smoothing) + smoothing / classes)


def resnet_case(
    labels: list[int], classes: int, *, smoothing: float = 0.0, bias: bool = True, **options: bool
) -> Case:
    features = backbone_features(len(labels), **options)
    targets = one_hot(labels, classes) * (1 - smoothing) + smoothing / classes
    return case(features, nn.Linear(features.shape[1], classes, bias=bias), targets)


def order(leak: Leak, truth: Case) -> Tensor:
    """Row of the leak for each true sample."""
    assert leak.batch_size == len(truth.features)
    cost = (
        torch.cdist(truth.features.double(), leak.features.double())
        / truth.features.norm(dim=1)[:, None]
    )
    return torch.as_tensor(
        linear_sum_assignment(cost + torch.cdist(truth.targets, leak.targets))[1]
    )


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
