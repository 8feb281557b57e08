"""A training of seconds: a small backbone, and photos that an inverse of it can learn."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.invert import Inverse
from unsum.invert.train import Training, TrainingState, Watch

SIZE = 16
SHORT = Training(steps=12, size=SIZE, batch=16, clients=(4, 8), save_every=0.0)


def backbone(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, 2, 1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12 * 8 * 8, 5),
    )


def photos(count: int, seed: int = 0) -> Tensor:
    """Two tones with an edge between them, anywhere."""
    generator = torch.Generator().manual_seed(seed)
    tones = torch.rand(count, 2, 3, 1, 1, generator=generator) * 255
    edge = torch.randint(4, SIZE - 4, (count, 1, 1, 1), generator=generator)
    left = torch.arange(SIZE).view(1, 1, 1, SIZE) < edge
    return torch.where(left, tones[:, 0], tones[:, 1]).expand(-1, -1, SIZE, -1).to(torch.uint8)


def weights(inverse: Inverse) -> Tensor:
    return torch.cat([p.flatten() for p in inverse.decoder.parameters()])


def seen_by(seen: list[TrainingState]) -> Watch:
    return lambda progress: seen.append(replace(progress))
