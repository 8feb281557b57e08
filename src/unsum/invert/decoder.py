"""The networks behind the learned inverse: features go in, a picture comes out."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsum.invert.layout import Layout
from unsum.registry import Registry

# Width and residual blocks where the picture is 2, 4, 8, … times as large as the map: about 18 M
# parameters from a 7×7 map.
_STAGES = {2: (64, 1), 4: (96, 2), 8: (192, 2), 16: (320, 2), 32: (512, 2), 64: (512, 2)}
# Maps of few channels, as a LeNet's 16, hold little: so small a decoder learns them in minutes of
# one core.
_NARROW, _NARROW_STAGES = 32, {4: (64, 1), 8: (128, 2)}
_VECTOR_WIDTH, _VECTOR_CODE = 384, 256  # a pooled vector spends its parameters on finding places
_COARSEST = 32  # a vector is first spread over a map that is so many times smaller than the picture

DECODERS: Registry[type[nn.Module]] = Registry("decoder")


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        last = nn.Conv2d(width, width, 3, 1, 1)
        # every block starts as the identity: deeper stacks train as easily
        nn.init.zeros_(last.weight)
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.SiLU(inplace=True), last)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


@DECODERS.register("decoder", summary="residual stages, pixel shuffle, under 20 M parameters")
class Decoder(nn.Module):
    """(B, H) features → (B, 3, s, s) in [0, 1].

    A stage is (width, residual blocks): mix channels, refine, double the side; a last pixel shuffle
    makes `patch`² pixels of every place. No normalization: brightness and contrast must pass
    through. `compress` takes the logarithm of large features, which are rare and far out after a
    ReLU.
    """

    def __init__(
        self,
        layout: Layout,
        size: int,
        stages: tuple[tuple[int, int], ...] | None = None,
        *,
        stem: int | None = None,
        patch: int | None = None,
        compress: bool = True,
    ) -> None:
        super().__init__()
        self.layout, self.size = layout, size
        channels, side, _ = layout.grid
        narrow = side > 1 and channels <= _NARROW
        self.patch = patch or (4 if size >= 96 or (narrow and 4 * side <= size) else 2)
        # A wide map has the most channels of all: 3×3 there would be half of all weights.
        stem = stem or (3 if narrow else 1)
        spread: list[nn.Module] = []
        if side == 1:
            side = max(2, round(size / _COARSEST))
            spread = [
                nn.Conv2d(channels, _VECTOR_CODE, 1),
                nn.SiLU(),
                nn.ConvTranspose2d(_VECTOR_CODE, _VECTOR_WIDTH, side),
            ]
            channels = _VECTOR_WIDTH
        table = _NARROW_STAGES if narrow else _STAGES
        self.stages = stages or _stages(
            side, size, self.patch, table, widest=_VECTOR_WIDTH if spread else 512
        )
        self.settings = {
            "stages": [list(stage) for stage in self.stages],
            "stem": stem,
            "patch": self.patch,
            "compress": compress,
        }
        self.compress = compress
        self.gain: Tensor
        self.register_buffer("gain", torch.ones(()))
        layers = spread
        for number, (width, blocks) in enumerate(self.stages):
            if number:
                layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
            kernel = 3 if number else stem
            layers += [nn.Conv2d(channels, width, kernel, 1, kernel // 2), nn.SiLU(inplace=True)]
            layers += [_Residual(width) for _ in range(blocks)]
            channels = width
        last = nn.Conv2d(channels, 3 * self.patch**2, 3, 1, 1)
        layers += [nn.SiLU(inplace=True), last, nn.PixelShuffle(self.patch), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)

    def calibrate(self, features: Tensor) -> None:
        """Bring features of any size to about one, from some of them."""
        self.gain.copy_(1 / features.float().square().mean().sqrt().clamp(min=1e-12))

    def forward(self, features: Tensor) -> Tensor:
        maps = self.layout.as_map(features * self.gain)
        if self.compress:
            maps = maps.sign() * maps.abs().log1p()
        return to_size(self.layers(maps), self.size)


def _stages(
    side: int, size: int, patch: int, table: dict[int, tuple[int, int]], widest: int
) -> tuple[tuple[int, int], ...]:
    """From a map of `side` to the side at which `patch` makes the picture."""
    doublings = max(0, round(math.log2(size / (side * patch))))
    reductions = [patch << k for k in range(doublings, -1, -1)]
    chosen = [table[min(max(table), max(min(table), r))] for r in reductions]
    return tuple((min(width, widest), blocks) for width, blocks in chosen)


def to_size(images: Tensor, size: int) -> Tensor:
    """Backbones round up: 336² becomes a map of 11×11, whose picture is 352²."""
    if images.shape[-1] == size:
        return images
    return F.interpolate(images, (size, size), mode="bilinear", antialias=True).clamp(0, 1)


class _ResConv(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, width, 3, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x + self.body(x), 0.2)


@DECODERS.register(
    "fgla-generator",
    summary="the generator published with FGLA, about 100 M parameters at 2048 channels",
)
class FglaGenerator(nn.Module):
    """Five stages of ConvTranspose (kernel 3, stride 2) + LeakyReLU + three residual convolutions,
    each halving the width.

    The number of convolutions in a residual block is not published; two give the published ~100 M
    parameters.
    """

    def __init__(self, layout: Layout, size: int) -> None:
        super().__init__()
        self.layout, self.size = layout, size
        self.settings: dict[str, Any] = {}
        channels, side, _ = layout.grid
        layers: list[nn.Module] = []
        for _ in range(max(1, round(math.log2(size / side)))):
            width = max(16, channels // 2)
            layers += [
                nn.ConvTranspose2d(channels, width, 3, 2, 1, output_padding=1),
                nn.LeakyReLU(0.2),
            ]
            layers += [_ResConv(width) for _ in range(3)]
            channels = width
        self.layers = nn.Sequential(*layers, nn.Conv2d(channels, 3, 1), nn.Sigmoid())

    def forward(self, features: Tensor) -> Tensor:
        return to_size(self.layers(self.layout.as_map(features)), self.size)
