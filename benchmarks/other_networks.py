"""How much of photos gradient matching reads where a network is no classifier: a U-Net, a regression.

    uv run python benchmarks/other_networks.py

The table of docs/guides/inputs.md; shares are of pixels, beyond the mean color of photos.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from unsum.client.any_network import capture_any, usual_loss
from unsum.data.batch import embedded_batch
from unsum.losses import SquaredError
from unsum.match.any_network import match_any
from unsum.match.protocol import Form, Protocol
from unsum.network.loss_function import LossFunction, function_of
from unsum.score.reference import public_picture

SIDE, DRAWS, SIZES = 16, 3, (1, 2)


class UNet(nn.Module):
    """Two levels, 16 channels."""

    def __init__(self, classes: int = 4, width: int = 16) -> None:
        super().__init__()
        self.down, self.pool = nn.Conv2d(3, width, 3, padding=1), nn.MaxPool2d(2)
        self.middle, self.up = nn.Conv2d(width, width, 3, padding=1), nn.ConvTranspose2d(width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.down(x).relu()
        found: Tensor = self.out(torch.cat([wide, self.up(self.middle(self.pool(wide)).relu())], 1))
        return found


def regression() -> nn.Module:
    """Two convolutions and two dense layers with one output."""
    maps = [nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*maps, nn.Linear(32 * 64, 32), nn.ReLU(), nn.Linear(32, 1))


def shares(found: Tensor, x: Tensor) -> list[float]:
    """Of every photo by the nearest answer, at least 0."""
    guess = public_picture(x)
    assert guess is not None
    off = torch.cdist(x.flatten(1), found.flatten(1)).square().amin(1)
    left = off / (guess - x.flatten(1)).square().sum(1)
    return [round(value, 2) for value in (1 - left).clamp_min(0).tolist()]


def main() -> None:
    photos, squares = embedded_batch(8, image_size=SIDE).images, function_of(SquaredError())
    assert squares is not None
    for draw in range(DRAWS):
        for size in SIZES:
            torch.manual_seed(draw)
            x = photos[torch.randperm(8)[:size]]
            masks = (x.mean(1) * 4).long().clamp(0, 3)
            cases: dict[str, tuple[nn.Module, Tensor, LossFunction, Form]] = {
                "U-Net": (UNet(), masks, usual_loss, "classes"),
                "regression": (regression(), torch.randn(size), squares, "numbers"),
            }
            for name, (model, targets, loss, form) in cases.items():
                update = capture_any(model, x, targets, loss, train=True)
                told = Protocol(loss, (3, SIDE, SIDE), tuple(targets.shape[1:]), form)
                for how, given in (("granted", targets), ("estimated", None)):
                    start = time.perf_counter()
                    leak = match_any(model, update, told, batch_size=size, targets=given)
                    assert leak.images is not None
                    spent = time.perf_counter() - start
                    print(f"{name}, draw {draw}, {size} photos, targets {how}: {shares(leak.images, x)}, {spent:.1f} s")


if __name__ == "__main__":
    main()
