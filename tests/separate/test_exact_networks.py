"""The exact solver behind every family of network, through the public API, with nothing given."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unsum
from support.head_cases import one_hot
from unsum.client.capture import in_mode
from unsum.head import collect_features

CLASSES = 60
LABELS = [7, 7, 7, 20, 41]


def pictures(count: int, size: int, channels: int = 3) -> Tensor:
    """Smooth pictures that differ in content, brightness and contrast, as photos do."""
    generator = torch.Generator().manual_seed(count)
    coarse = torch.randn(count, channels, 6, 6, generator=generator) * torch.rand(
        count, 1, 1, 1, generator=generator
    )
    coarse = coarse + torch.randn(count, channels, 1, 1, generator=generator)
    return (
        nn.functional.interpolate(coarse, size=size, mode="bicubic").mul(0.25).add(0.5).clamp(0, 1)
    )


def lenet() -> nn.Sequential:
    """LeNet with sigmoids, as the soft-label paper has it."""
    return nn.Sequential(
        *(nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 2, 2), nn.Sigmoid()),
        *(nn.Conv2d(12, 12, 5, 1, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(768, CLASSES)),
    )


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3072, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


NETWORKS = {
    "resnet18": 64, "mobilenet_v2": 64, "densenet121": 64, "efficientnet_b0": 64,
    "convnext_tiny": 64, "shufflenet_v2_x0_5": 64, "regnet_y_400mf": 64, "lenet": 32, "mlp": 32,
}  # fmt: skip


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name in ("lenet", "mlp"):
        return lenet() if name == "lenet" else mlp()
    return torchvision.models.get_model(
        name, weights=None, num_classes=CLASSES, **NO_DROPOUT.get(name, {})
    )


# Dropout at the head would be the client's secret: the features that reach the head are then
# another draw's.
NO_DROPOUT = {
    "mobilenet_v2": {"dropout": 0.0},
    "efficientnet_b0": {"dropout": 0.0, "stochastic_depth_prob": 0.0},
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "smoothed"])
def test_labels_and_features_of_every_family(name: str, soft: bool) -> None:
    model, images = build(name), pictures(len(LABELS), NETWORKS[name])
    train = name != "convnext_tiny"  # its stochastic depth cannot be switched off
    targets = one_hot(LABELS, CLASSES).float()
    if soft:
        targets = unsum.smooth_labels(targets, 0.2, CLASSES)
    leak = unsum.separate(model, unsum.capture(model, images, targets, train=train))
    with in_mode(model, train):
        features = collect_features(model, images)
    worst = unsum.score(leak, features=features)["worst_feature_error"]
    assert leak.batch_size == len(LABELS)
    assert sorted(leak.labels.tolist()) == LABELS
    assert unsum.score(leak, targets=targets)["target_error"] < 1e-3
    if leak.exact:
        assert worst < 1e-3
    else:
        # a default-initialized MLP or LeNet hardly tells samples apart: then the certificate must
        # say so
        assert name in ("lenet", "mlp")
        assert leak.notes
        assert worst < 1e-2
        assert math.isnan(leak.predicted_error) or worst < 10 * leak.predicted_error


@settings(max_examples=8)
@given(order=st.permutations(range(6)), scale=st.floats(0.01, 100), shift=st.floats(-3, 3))
def test_order_scale_and_a_common_bias_change_nothing(
    order: list[int], scale: float, shift: float
) -> None:
    """Permuting samples, scaling the gradient and adding a constant to all biases leave the answer
    as it was."""
    torch.manual_seed(0)
    model = nn.Linear(96, 50)
    features, labels = (
        torch.randn(6, 96).relu() + torch.rand(96),
        torch.tensor([3, 3, 3, 8, 20, 41]),
    )
    plain = unsum.separate(model, unsum.capture(model, features, labels))
    with torch.no_grad():
        model.bias += shift
    changed = unsum.capture(model, features[order], labels[order]).map(lambda _name, g: g * scale)
    leak = unsum.separate(model, changed)
    assert leak.scale == pytest.approx(scale, rel=1e-4)
    assert leak.exact
    assert (
        unsum.score(leak, targets=labels, features=plain.features[_rows(plain, features)])[
            "worst_feature_error"
        ]
        < 1e-4
    )


def _rows(leak: unsum.Leak, features: Tensor) -> Tensor:
    return torch.cdist(features, leak.features).argmin(1)


def small_vit() -> torchvision.models.VisionTransformer:
    torch.manual_seed(0)
    return torchvision.models.VisionTransformer(
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=128,
        num_classes=CLASSES,
    )


def attacked(model: nn.Module, labels: list[int]) -> tuple[unsum.Leak, Tensor]:
    images = pictures(len(labels), 32)
    leak = unsum.separate(model, unsum.capture(model, images, torch.tensor(labels)))
    with in_mode(model, True):
        return leak, collect_features(model, images)


def test_a_vision_transformer_starts_with_a_zero_head_that_tells_labels_apart() -> None:
    leak, features = attacked(small_vit(), [7, 3, 20, 41])
    assert sorted(leak.labels.tolist()) == [3, 7, 20, 41]
    assert unsum.score(leak, features=features)["worst_feature_error"] < 1e-4


def test_behind_a_zero_head_equal_labels_come_back_as_their_mean() -> None:
    leak, features = attacked(small_vit(), LABELS)
    assert sorted(leak.labels.tolist()) == LABELS
    assert not leak.exact
    mean = features[:3].mean(0)
    found = leak.features[leak.labels == 7]
    assert float((found - mean).norm(dim=1).max() / mean.norm()) < 1e-4
    assert any("cannot be told apart" in note for note in leak.notes)


def test_a_vision_transformer_after_its_first_steps() -> None:
    model = small_vit()
    nn.init.normal_(model.heads.head.weight, std=0.05)
    leak, features = attacked(model, LABELS)
    assert sorted(leak.labels.tolist()) == LABELS
    assert leak.exact
    assert unsum.score(leak, features=features)["worst_feature_error"] < 1e-3
