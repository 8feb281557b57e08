"""Networks, real pictures and settings that are small enough for a test, for every matcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import unsum
from unsum.data import embedded_batch

CLASSES = 10


def lenet(seed: int = 0) -> nn.Sequential:
    """DLG's: sigmoids and wide random weights, for 3×32×32."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 5, 2, 2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, 2, 2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, 1, 2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(768, CLASSES),
    )
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def convnet(seed: int = 0, *, batch_norm: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inside, outside, stride in ((3, 32, 1), (32, 32, 2), (32, 64, 2)):
        norm = [nn.BatchNorm2d(outside)] if batch_norm else []
        layers += [nn.Conv2d(inside, outside, 3, stride, 1), *norm, nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, CLASSES))


def normed() -> nn.Sequential:
    """With BatchNorm layers that have seen other photos, as a server's model has."""
    net = convnet(batch_norm=True).train()
    with torch.no_grad():
        for _ in range(30):
            net(crops(8)[4:])
    return net.eval()


def crops(count: int) -> Tensor:
    """(count, 3, 32, 32) the middles of the embedded photos."""
    return embedded_batch(count, image_size=96).images[:, :, 32:64, 32:64].contiguous()


@dataclass(frozen=True)
class Case:
    """A matcher, a network and a batch, and the PSNR every picture must reach; gray and noise stay
    5 dB below it."""

    method: str
    network: Callable[[], nn.Sequential]
    batch: int
    decibel: float
    options: dict[str, Any] = field(default_factory=dict)
    soft: bool = False

    def __str__(self) -> str:
        return f"{self.method}-{self.network.__name__}-{self.batch}"

    def run(self) -> tuple[unsum.Leak, Tensor, Tensor]:
        net, images, targets = self.network(), crops(self.batch), torch.arange(self.batch) + 1
        if self.soft:
            targets = unsum.smooth_labels(targets, 0.1, CLASSES)
        update = unsum.capture(net, images, targets, train=net.training)
        options = {"image_size": 32, **self.options}
        leak = unsum.attack(net, update, self.method, batch_size=self.batch, options=options)
        return leak, images, targets


def decibels(found: Tensor, images: Tensor) -> Tensor:
    """(B,) PSNR of every picture in `images`, found in whatever order."""
    apart = (found[:, None] - images[None]).square().flatten(2).mean(2)
    table = -10 * apart.log10()
    rows, columns = linear_sum_assignment(-table.numpy())
    return table[torch.as_tensor(rows), torch.as_tensor(columns)]
