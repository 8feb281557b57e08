"""Small residual networks whose head reads the last maps, and a client of theirs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

import unsum
from unsum.gradients import inputs_of
from unsum.leak import Leak
from unsum.models.inner import tap

CLASSES = 60


def network(
    block: type[BasicBlock] | type[Bottleneck],
    layers: list[int],
    size: int,
    *,
    version_1: bool = False,
) -> ResNet:
    """Untrained, BatchNorm with weights of its own and running statistics of some pictures; the
    head reads the last maps."""
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


def client(model: ResNet | Narrow, B: int, *, train: bool = True) -> tuple[Tensor, unsum.Update]:
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


class Narrow(nn.Module):
    """A residual network for 16² pictures: stages of `widths` channels, two blocks each, on maps of
    16², 8², 4²."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        widths: list[int],
        *,
        pooled: bool = True,
        version_1: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image_size = 16
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(widths[0]), nn.ReLU()
        stages, channels = [], widths[0]
        for number, width in enumerate(widths):
            stride, outputs = 1 + (number > 0), width * block.expansion
            side = nn.Sequential(
                nn.Conv2d(channels, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
            plain = stride == 1 and channels == outputs
            first = block(channels, width, stride, None if plain else side)
            if version_1:
                first.conv1.stride, first.conv2.stride = (stride, stride), (1, 1)
            stages.append(nn.Sequential(first, block(outputs, width)))
            channels = outputs
        self.layers = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1) if pooled else nn.Identity()
        self.fc = nn.Linear(
            channels * (1 if pooled else (16 >> len(widths) - 1) ** 2), 10 if pooled else CLASSES
        )
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0, 0.2)
        with torch.no_grad():
            for _ in range(10):
                self(torch.rand(8, 3, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(
            self.pool(self.layers(self.relu(self.bn1(self.conv1(x))))).flatten(1)
        )
        return logits


def known_at(model: Narrow, images: Tensor, labels: Tensor, layer: str) -> Leak:
    """A separation that found what `layer` reads, as exactly as the client's own pass has it."""
    seen = read_by(model, images, layer)
    copied = copy.deepcopy(model)
    with torch.no_grad(), inputs_of(copied.fc) as features:
        logits = copied(images).double()
    targets = nn.functional.one_hot(labels, logits.shape[1]).double()
    return Leak("maps", targets, logits, features[0].double(), 0.0, 1e-7, True, inner={layer: seen})
