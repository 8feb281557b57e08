"""What trained_map.py and trained_limits.py share: networks on their way through a training, and
what counts as recovered.

A sample is *within reach* when 1 − p_y, the share of it that its own gradient carries, is at least
1e-5: the client computes p − 1 in float32, which leaves 0.6 % of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

from unsum.client.capture import in_mode
from unsum.data import read_photos
from unsum.models import load_model
from unsum.models.strides import PHOTOS_DEVIATION, PHOTOS_MEAN

REACH, RECOVERED = 1e-5, 1e-3


def mobilenet_and_photos(weights: Path, source: Path) -> tuple[nn.Module, Tensor, Tensor]:
    model = load_model("torchvision:mobilenet_v2", classes=1000, weights=weights).model
    model.classifier[0].p = 0.0  # dropout would hide features from the comparison
    photos = read_photos(source, size=224)
    labels, order = photos.labels.sort(stable=True)
    return model, normalized(photos.images[order]), labels


def cifar_network() -> nn.Module:
    """ResNet-18 with the stem for pictures of 32²."""
    model = torchvision.models.resnet18(num_classes=100)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return model


def normalized(images: Tensor) -> Tensor:
    """ImageNet's own normalization of photos in bytes."""
    mean, deviation = torch.tensor(PHOTOS_MEAN), torch.tensor(PHOTOS_DEVIATION)
    return (images.float() / 255 - mean[:, None, None]) / deviation[:, None, None]


def train_until(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    accuracies: tuple[float, ...],
    *,
    steps_between: int | None = None,
    mixed: bool = False,
) -> Iterator[float]:
    """Train, and pause whenever the accuracy on the training images, measured in eval mode, passes
    a mark.

    It is measured after every epoch, or every so many steps; the untrained network passes marks as
    well.
    """
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    marks = list(accuracies)
    steps = 0
    while marks:
        for part in torch.randperm(len(images)).split(64):
            if steps % (steps_between or -(-len(images) // 64)) == 0:
                accuracy = accuracy_on(model, images, labels)
                passed = [mark for mark in marks if accuracy >= mark]
                marks = marks[len(passed) :]
                if passed:
                    yield accuracy
            if not marks:
                return
            model.train()
            flipped = images[part].flip(3) if torch.rand(()) < 0.5 else images[part]
            shifts = [int(shift) for shift in torch.randint(-3, 4, (2,))]
            with torch.autocast(images.device.type, torch.bfloat16, enabled=mixed):
                logits = model(flipped.roll(shifts, (2, 3)))
            loss = nn.functional.cross_entropy(logits.float(), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1


@torch.no_grad()
def accuracy_on(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with in_mode(model, False):
        pairs = zip(images.split(100), labels.split(100), strict=True)
        right = sum(int((model(pictures).argmax(1) == y).sum()) for pictures, y in pairs)
    return right / len(images)
