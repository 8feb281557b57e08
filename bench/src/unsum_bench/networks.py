"""The networks that tables are measured on, by name. All of them take photos in [0, 1] as they
are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from unsum.errors import UnsumError, check_name
from unsum.models import load_model
from unsum.models.weights_file import load_weights
from unsum_bench.declare import Network

Build = Callable[[Network], nn.Module]


def build(network: Network, *, seed: int, weights: str | None) -> nn.Module:
    """The network with random weights that `seed` fixes; those that take a file of weights cannot
    do without it."""
    check_name("network", network.name, BUILDERS)
    if network.name == "default":  # the embedded weights, under a head that the seed fixes
        return load_model("default", classes=network.classes, size=network.size, seed=seed).model
    if network.name in WEIGHTED and weights is None:
        raise UnsumError(
            f"The network {network.name!r} needs trained weights; give a file with --weights."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BUILDERS[network.name](network)
    if network.name in WEIGHTED and weights is not None:
        load_weights(model, Path(weights))
    model.image_size = network.size  # type: ignore[assignment] # for attacks that draw pictures
    return model


def conv(network: Network) -> nn.Sequential:
    """Two strided convolutions and a head: every attack runs on it, and fast."""
    return _convolutional(network, nn.ReLU, (8, 2), (12, 2))


def lenet(network: Network) -> nn.Sequential:
    """As in DLG: sigmoids, 768 features of a 32² photo."""
    return _convolutional(network, nn.Sigmoid, (12, 2), (12, 2), (12, 1))


def _convolutional(
    network: Network, activation: type[nn.Module], *layers: tuple[int, int]
) -> nn.Sequential:
    """Convolutions of 5 × 5 with these channels and strides, two of which halve the photo, and a
    head."""
    parts: list[nn.Module] = []
    for (inputs, _), (outputs, stride) in pairwise([(3, 1), *layers]):
        parts += [nn.Conv2d(inputs, outputs, 5, stride, 2), activation()]
    side = -(-network.size // 4)
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(layers[-1][0] * side**2, network.classes))


def spread_lenet(network: Network) -> nn.Sequential:
    """LeNet with weights uniform in ±0.5, the soft-label paper's own initialization of untrained
    networks."""
    model = lenet(network)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def learnable_lenet(network: Network) -> nn.Sequential:
    """LeNet with weights that are large enough for its sigmoids to learn at all."""
    model = lenet(network)
    for module in model:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_normal_(module.weight, 4.0)
    return model


def fully_connected(
    network: Network, *, widths: tuple[int, ...], bias: bool = False
) -> nn.Sequential:
    """ReLU between layers of these widths."""
    sizes = [3 * network.size**2, *widths]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], network.classes, bias))


def of_torchvision(network: Network) -> Any:  # torchvision says nothing of types
    return torchvision.models.get_model(network.name, weights=None, num_classes=network.classes)


class SmallBlock(nn.Module):
    """Two convolutions of 3 × 3 around which the input is carried along."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.carry = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[0](self.first(x)).relu()
        total: Tensor = self.norms[1](self.second(inner)) + self.carry(x)
        return total.relu()


def small_resnet(network: Network) -> nn.Sequential:
    """Four blocks for photos of 32²: learns a few thousand of them in seconds on a GPU."""
    widths = (32, 64, 128, 256)
    blocks = [
        SmallBlock(inputs, outputs, 1 if i == 0 else 2)
        for i, (inputs, outputs) in enumerate(pairwise((3, *widths)))
    ]
    return nn.Sequential(
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], network.classes)
    )


def resnet50(network: Network) -> Any:
    """Version 1 (the step in the 1×1 convolution) without global pooling: 2048 × 7 × 7 features for
    photos of 224²."""
    model = of_torchvision(network)
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    side = -(-network.size // 32)
    model.avgpool, model.fc = nn.Identity(), nn.Linear(2048 * side**2, network.classes)
    return model


BUILDERS: dict[str, Build] = {
    "default": conv,  # never called: see `build`
    "conv": conv,
    "lenet": lenet,
    "lenet ±0.5": spread_lenet,
    "lenet, learnable": learnable_lenet,
    # the soft-label paper's FCN-4, for photos of 64²
    "fcn": partial(fully_connected, widths=(4096, 1024, 256)),
    "fcn, narrow": partial(fully_connected, widths=(128, 64, 32)),
    "plain": partial(fully_connected, widths=(128, 64), bias=True),  # what peelers are for
    "resnet18": of_torchvision,
    "alexnet": of_torchvision,
    "small resnet": small_resnet,
    "resnet50": resnet50,
}
WEIGHTED = ("resnet50",)
