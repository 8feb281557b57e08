"""Passes of many batches through a ResNet, written out, against autograd; see `benchmarks/resnet_passes.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torchvision.models import ResNet
from torchvision.models.resnet import BasicBlock, Bottleneck

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.long
CLASSES, K, B, SIDE = 7, 2, 2, 64


@pytest.fixture(scope="module", autouse=True)
def _beside() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def network(block: Any, *, pooled: bool, version_1: bool) -> ResNet:
    torch.manual_seed(0)
    model = ResNet(block, [1, 1, 1, 1], num_classes=CLASSES)
    if version_1:
        for stage in (model.layer2, model.layer3, model.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    if not pooled:
        model.avgpool = nn.Identity()
        model.fc = nn.Linear(4 * model.fc.in_features, CLASSES)
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    return model.double().train()


def by_autograd(model: nn.Module, images: Tensor, targets: Tensor, sent: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """⟨g, ĝ⟩, ‖g‖² and the derivative of ⟨0.3 g − 2 ĝ, g(x)⟩ by the pictures."""
    images = images.clone().requires_grad_()
    logits = model(images)
    errors = (logits.softmax(-1) - targets) / len(images)
    found = torch.autograd.grad(logits, list(model.parameters()), errors, create_graph=True)
    pairs = list(zip(found, sent.values(), strict=True))
    (pull,) = torch.autograd.grad(found, images, [0.3 * g.detach() - 2 * s for g, s in pairs])
    dot, square = sum((g * s).sum() for g, s in pairs), sum(g.square().sum() for g in found)
    return dot.detach(), square.detach(), pull


@pytest.mark.parametrize(
    ("block", "pooled", "version_1"), [(BasicBlock, True, False), (Bottleneck, False, True), (Bottleneck, True, False)]
)
def test_values_and_second_derivatives_are_those_of_autograd(block: Any, pooled: bool, version_1: bool) -> None:
    from resnet_passes import Passes

    model = network(block, pooled=pooled, version_1=version_1)
    images = torch.rand(K, B, 3, SIDE, SIDE, dtype=torch.float64)
    targets = one_hot(torch.tensor([[1, 1], [4, 2]]), CLASSES).double()
    sent = [{name: torch.randn_like(p).detach() for name, p in model.named_parameters()} for _ in range(K)]
    passes = Passes(model, sent, targets, torch.float64)
    dot, square = passes(images)
    pull = passes.pull(torch.full((K,), 0.3, dtype=torch.float64), torch.full((K,), -2.0, dtype=torch.float64))
    for k in range(K):
        true_dot, true_square, true_pull = by_autograd(model, images[k], targets[k], sent[k])
        assert float(dot[k]) == pytest.approx(float(true_dot), rel=1e-9)
        assert float(square[k]) == pytest.approx(float(true_square), rel=1e-9)
        assert float((pull[k] - true_pull).norm() / true_pull.norm()) < 1e-9
        assert float(passes.sent_square[k]) == pytest.approx(sum(float(s.square().sum()) for s in sent[k].values()))


def test_one_received_gradient_serves_all_batches_and_can_be_exchanged() -> None:
    from resnet_passes import Passes

    model = network(Bottleneck, pooled=False, version_1=True)
    images = torch.rand(K, B, 3, SIDE, SIDE, dtype=torch.float64)
    targets = one_hot(torch.tensor([[1, 1], [4, 2]]), CLASSES).double()
    sent = [{name: torch.randn_like(p).detach() for name, p in model.named_parameters()} for _ in range(2)]
    passes = Passes(model, sent[:1], targets, torch.float64)
    for one in (sent[0], sent[1]):
        passes.aim([one])
        dot, _ = passes(images)
        pull = passes.pull(torch.full((K,), 0.3, dtype=torch.float64), torch.full((K,), -2.0, dtype=torch.float64))
        for k in range(K):
            true_dot, _, true_pull = by_autograd(model, images[k], targets[k], one)
            assert float(dot[k]) == pytest.approx(float(true_dot), rel=1e-9)
            assert float((pull[k] - true_pull).norm() / true_pull.norm()) < 1e-9


def test_total_variation_and_its_slope() -> None:
    from rivals import _total_variation

    x = torch.rand(K, B, 3, 5, 6, dtype=torch.float64, requires_grad=True)
    value, slope = _total_variation(x.detach())
    down, across = x.diff(dim=-2).abs(), x.diff(dim=-1).abs()
    true = down.mean((1, 2, 3, 4)) + across.mean((1, 2, 3, 4))
    (true_slope,) = torch.autograd.grad(true.sum(), x)
    assert torch.allclose(value, true.detach())
    assert torch.allclose(slope, true_slope)
