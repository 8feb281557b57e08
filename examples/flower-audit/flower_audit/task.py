"""The network and the clients' private pictures: crops of the photos that ship with unsum, of the
size of CIFAR's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsum.data import embedded_batch, tags

SIDE, SAMPLES = 32, 32


def network() -> nn.Sequential:
    return nn.Sequential(
        *block(3, 16),
        *block(16, 32),
        *block(32, 64),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, len(tags())),
    )


def block(channels: int, width: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]


def private_pictures(client: int) -> tuple[Tensor, Tensor]:
    """(32, 3, 32, 32) random crops and mirrored crops that no other client has, with the photos'
    labels."""
    photos = embedded_batch(16, image_size=48)
    generator = torch.Generator().manual_seed(client)
    images, labels = [], []
    for which in torch.randint(len(photos.images), (SAMPLES,), generator=generator).tolist():
        top, left, mirrored = torch.randint(48 - SIDE, (3,), generator=generator).tolist()
        crop = photos.images[which, :, top : top + SIDE, left : left + SIDE]
        images.append(crop.flip(-1) if mirrored % 2 else crop)
        labels.append(int(photos.targets[which]))
    return torch.stack(images), torch.tensor(labels)
