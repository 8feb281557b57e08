from __future__ import annotations

from importlib.resources import files

import pytest
import torch

from unsum import UnsumError
from unsum.head import find_head
from unsum.models import backbone_fingerprint, load_model


def test_the_default_is_a_trained_backbone_under_a_fresh_head() -> None:
    first, same, other = (load_model("default", classes=100, seed=seed).model for seed in (0, 0, 1))
    assert torch.equal(first.head.weight, same.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)
    assert backbone_fingerprint(first) == backbone_fingerprint(other)
    # Fresh: PyTorch's own initialisation is uniform within 1/√H, which gives this spread.
    assert float(first.head.weight.detach().std()) == pytest.approx((1 / 32768 / 3) ** 0.5, rel=0.01)


def test_the_fingerprint_sees_any_change_of_the_backbone() -> None:
    model = load_model("default", classes=10).model
    before = backbone_fingerprint(model)
    with torch.no_grad():
        model.head.weight.add_(1)
        assert backbone_fingerprint(model) == before
        next(model.backbone.parameters())[0, 0, 0, 0] += 1e-4
    assert backbone_fingerprint(model) != before


def test_loading_does_not_disturb_the_callers_random_numbers() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    load_model("default", classes=10, seed=9)
    load_model("torchvision:mobilenet_v3_small", classes=10, seed=9)
    assert torch.equal(torch.rand(1), expected)


def test_torchvision_models_get_the_classes_asked_for() -> None:
    loaded = load_model("torchvision:resnet18", classes=23, seed=1)
    assert find_head(loaded.model)[1].out_features == 23
    assert loaded.image_size == 224
    again = load_model("torchvision:resnet18", classes=23, seed=1)
    assert torch.equal(loaded.model.conv1.weight, again.model.conv1.weight)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("defualt", "did you mean 'default'"),
        ("torchvision:resnet81", "did you mean 'resnet18'"),
        ("torchvision:", "There is no torchvision model ''"),
        ("timm:resnet18", "There is no model 'timm:resnet18'"),
    ],
)
def test_unknown_models_are_refused(spec: str, sentence: str) -> None:
    with pytest.raises(UnsumError, match=sentence):
        load_model(spec, classes=10)


def test_shipped_weights_stay_within_twelve_megabytes() -> None:
    sizes = [
        len((files(f"unsum.{package}") / "weights" / name).read_bytes())
        for package, name in [("models", "default-backbone.safetensors"), ("invert", "default-inverse.safetensors")]
    ]
    assert sum(sizes) <= 12e6
