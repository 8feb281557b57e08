"""A small network with BatchNorm, photos of the size of CIFAR's, and a client that trains by SGD
and sends all of its state."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from unsum.data import embedded_batch

CLASSES = 100


def network(seed: int = 0, *, norm: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.BatchNorm2d(16) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, CLASSES),
    )


def photos(first: int = 0, count: int = 4) -> tuple[Tensor, Tensor]:
    batch = embedded_batch(first + count, image_size=32)
    return batch.images[first:], batch.targets[first:]


def trained(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    rate: float,
    steps: int = 1,
    decay: float = 0.0,
    momentum: float = 0.0,
) -> dict[str, Tensor]:
    """The whole state dict after `steps` steps on the one batch, BatchNorm's statistics
    included."""
    local = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(local.parameters(), lr=rate, weight_decay=decay, momentum=momentum)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(local(images), targets).backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in local.state_dict().items()}
