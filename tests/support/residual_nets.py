"""Small residual networks whose head reads the last maps, and a client of theirs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

import unsum
from unsum.models.inner import tap

CLASSES = 60


def network(
    block: type[BasicBlock] | type[Bottleneck], layers: list[int], size: int, *, version_1: bool = False
) -> ResNet:
    """Untrained, BatchNorm with weights of its own and running statistics of some pictures; the head reads the last maps."""
    torch.manual_seed(0)
    model = ResNet(block, layers, num_classes=CLASSES)
    if version_1:
        for stage in (model.layer2, model.layer3, model.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    model.avgpool = nn.Identity()
    model.fc = nn.Linear(512 * block.expansion * (-(-size // 32)) ** 2, CLASSES)
    model.image_size = size
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    model.train()
    with torch.no_grad():
        for _ in range(10):
            model(torch.rand(8, 3, size, size))
    return model


def client(model: ResNet, B: int, *, train: bool = True) -> tuple[Tensor, unsum.Update]:
    torch.manual_seed(1)
    images = torch.rand(B, 3, model.image_size, model.image_size)
    update = unsum.capture(model, images, torch.arange(B) % 3, train=train)
    model.train(train)
    return images, update


def read_by(model: nn.Module, images: Tensor, layer: str) -> Tensor:
    copied = copy.deepcopy(model)
    tapped = tap(copied, layer)
    with torch.no_grad():
        copied(images)
    assert tapped.seen is not None
    return tapped.seen.double()
