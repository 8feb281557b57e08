from __future__ import annotations

import pytest
import torch
import torchvision
from torch import Tensor, nn

from unsum.head import find_head
from unsum.labels.feature_sign import feature_sign


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", True),
        ("mobilenet_v2", True),
        ("vgg11", True),
        ("densenet121", True),
        ("mobilenet_v3_small", False),  # Hardswish
        ("convnext_tiny", False),  # LayerNorm
        ("efficientnet_b0", False),  # SiLU
    ],
)
def test_torchvision_networks(name: str, expected: bool) -> None:
    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None)
    assert feature_sign(model, find_head(model)[0]).non_negative is expected


class Join(nn.Module):
    """Two branches added, viewed and fed to a head."""

    def __init__(self, first: nn.Module, second: nn.Module, shift: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.head, self.shift = first, second, nn.Linear(4, 3), shift

    def forward(self, x: Tensor) -> Tensor:
        joined = self.first(x) + self.second(x)
        if self.shift:
            joined = joined + self.shift
        return self.head(joined.view(x.size(0), -1))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Join(nn.ReLU(), nn.Sigmoid()), True),
        (Join(nn.ReLU(), nn.Tanh()), None),
        (Join(nn.ReLU(), nn.ReLU(), shift=-1.0), None),
        (nn.Linear(4, 3), None),
    ],
)
def test_sums_and_the_unknown(model: nn.Module, expected: bool | None) -> None:
    assert feature_sign(model, find_head(model)[0]).non_negative is expected


def test_a_model_that_cannot_be_traced_is_unknown() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x if x.sum() > 0 else -x)

    assert feature_sign(Branching(), "head").non_negative is None
