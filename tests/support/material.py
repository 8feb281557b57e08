"""A small network and pictures to feed it, for tests that need no photo."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 40


def small_net(
    *, bias: bool = True, batch_norm: bool = True, classes: int = CLASSES, seed: int = 0
) -> nn.Sequential:
    """A convolutional classifier for 3×16×16 inputs with 128 features; the head's name is '5'."""
    torch.manual_seed(seed)
    norm = nn.BatchNorm2d(32) if batch_norm else nn.Identity()
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1),
        norm,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, classes, bias=bias),
    )


def pictures(count: int, seed: int = 0) -> Tensor:
    """(count, 3, 16, 16) in [0, 1], each of its own mean and contrast, as photos are."""
    generator = torch.Generator().manual_seed(seed)
    mean, contrast = (torch.rand(count, 3, 1, 1, generator=generator) for _ in range(2))
    return (mean + contrast * (torch.rand(count, 3, 16, 16, generator=generator) - 0.5)).clamp(0, 1)
