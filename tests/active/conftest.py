"""Models of two kinds to put behind a malicious layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from support.active_photos import SIZE


@pytest.fixture
def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 64), nn.Sigmoid(), nn.Linear(64, 40))


@pytest.fixture
def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 40),
    )
