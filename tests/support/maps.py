"""Small networks that end in convolutions and a pooled head, a client of theirs, and the maps of
its pictures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck

import unsum

Norm = Callable[[int], nn.Module]


class Block(nn.Module):
    """act(norm(conv(act(norm(conv(x))))) + x)."""

    def __init__(self, channels: int, norm: Norm, activation: type[nn.Module], bias: bool) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, 1, 1, bias=bias), norm(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=bias), norm(channels)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.norm1(self.conv1(x)))
        out: Tensor = self.activation(self.norm2(self.conv2(y)) + x)
        return out


def network(
    channels: int = 96,
    classes: int = 5,
    *,
    norm: Norm = nn.BatchNorm2d,
    activation: type[nn.Module] = nn.ReLU,
    bias: bool = False,
    plain: bool = False,
) -> nn.Sequential:
    """For pictures of 16²: two strided convolutions, then a block on 4×4 maps (`plain`: without its
    shortcut), pooling, a head.

    BatchNorm has weights of its own and running statistics of some pictures.
    """
    torch.manual_seed(0)
    stem = [
        nn.Conv2d(3, channels, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, 2, 1),
        nn.ReLU(),
    ]
    pieces = [
        part
        for _ in range(2)
        for part in (nn.Conv2d(channels, channels, 3, 1, 1), norm(channels), activation())
    ]
    block: nn.Module = nn.Sequential(*pieces) if plain else Block(channels, norm, activation, bias)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    model = nn.Sequential(nn.Sequential(*stem), block, *head)
    return _used(model)


@dataclass(frozen=True)
class Client:
    """What a client sent, and the truth: its maps (B, C, 4, 4), features and labels."""

    model: nn.Sequential
    update: unsum.Update
    maps: Tensor
    features: Tensor
    labels: Tensor

    def errors(self, leak: unsum.Leak) -> Tensor:
        """(B,) relative errors of the maps; asserts that each sample is there once, with its own
        label."""
        found = next(iter(leak.inner.values())).double().flatten(1)
        true = self.maps.double().flatten(1)
        distances = torch.cdist(found, true) / true.norm(dim=1)
        errors, which = distances.min(1)
        assert sorted(which.tolist()) == list(range(len(true)))
        assert leak.labels.tolist() == self.labels[which].tolist()
        return errors


def client(
    model: nn.Sequential,
    labels: list[int],
    *,
    train: bool = True,
    buffers: bool = False,
    seed: int = 1,
    twins: float | None = None,
    first: float = 1.0,
) -> Client:
    """With `twins`, the last picture is the first one but for this share; the `first` one is so
    many times stronger."""
    torch.manual_seed(seed)
    pictures, y = torch.randn(len(labels), 3, 16, 16), torch.tensor(labels)
    pictures[0] *= first
    if twins is not None:
        pictures[-1] = pictures[0] + twins * pictures[-1]
    model.train(train)
    update = unsum.capture(model, pictures, y, train=train, buffers=buffers)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        maps = copied[0](pictures)
        features = copied[1:-1](maps)
    return Client(model, update, maps, features, y)


def _used(model: nn.Sequential) -> nn.Sequential:
    """BatchNorm with weights of its own and running statistics of some pictures."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(8, 3, 16, 16))
    return model


def bottleneck(channels: int = 64, classes: int = 10) -> nn.Sequential:
    """The same with torchvision's bottleneck in the block's place: 1×1, 3×3 and 1×1
    convolutions."""
    torch.manual_seed(0)
    stem = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 4 * channels, 3, 2, 1), nn.ReLU()
    )
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * channels, classes)]
    model = nn.Sequential(stem, Bottleneck(4 * channels, channels), *head)
    return _used(model)


def depthwise(channels: int = 192, classes: int = 5) -> nn.Sequential:
    """The same with a depthwise convolution and two 1×1 ones on maps of 2×2, as MobileNet ends."""
    torch.manual_seed(0)
    wide = nn.Conv2d(32, channels, 3, 2, 1)
    stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), wide, nn.ReLU(), nn.MaxPool2d(2))
    parts = [
        nn.Conv2d(channels, channels, 3, 1, 1, groups=channels, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU6(),
        nn.Conv2d(channels, 64, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.Conv2d(64, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU6(),
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return _used(nn.Sequential(stem, nn.Sequential(*parts), *head))
