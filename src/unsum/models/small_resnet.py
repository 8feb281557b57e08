"""The embedded default: a small residual network for 128² photos whose head reads the unpooled
feature map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

INPUT_SIZE = 128  # side of the photos it was trained on
REDUCTION = 8  # of a picture's side, down to the feature map
FEATURE_SHAPE = (128, INPUT_SIZE // REDUCTION, INPUT_SIZE // REDUCTION)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class SmallResNet(nn.Module):
    """(B, 3, 128, 128) in [0, 1] → features 128×16×16, flattened → `num_classes` logits.

    Global pooling is left out, as in the RGLA paper: the head sees 32 768 features per photo.
    Photos of another `size`, a multiple of eight, take another head.
    """

    def __init__(self, num_classes: int = 100, size: int = INPUT_SIZE) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            ResidualBlock(32, 64, 2),
            ResidualBlock(64, 64, 1),
            ResidualBlock(64, 128, 2),
            ResidualBlock(128, FEATURE_SHAPE[0], 1),
        )
        self.head = nn.Linear(FEATURE_SHAPE[0] * (size // REDUCTION) ** 2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(x).flatten(1))
        return logits
