"""The network behind the learned inverse: a feature map goes in, a picture comes out."""

from __future__ import annotations

from torch import Tensor, nn


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        last = nn.Conv2d(width, width, 3, 1, 1)
        nn.init.zeros_(last.weight)  # every block starts as the identity: deeper stacks train as easily
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.SiLU(inplace=True), last)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


class Decoder(nn.Module):
    """(B, C·h·w) features → (B, 3, s, s) in [0, 1].

    A stage is (width, residual blocks): mix channels, refine, double the side; the last doubling is a pixel shuffle.
    No normalisation: brightness and contrast must pass through.
    """

    def __init__(self, feature_shape: tuple[int, int, int], stages: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.feature_shape = feature_shape
        self.stages = stages
        layers: list[nn.Module] = []
        inputs = feature_shape[0]
        for number, (width, blocks) in enumerate(stages):
            if number:
                layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
            layers += [nn.Conv2d(inputs, width, 3, 1, 1), nn.SiLU(inplace=True)]
            layers += [_Residual(width) for _ in range(blocks)]
            inputs = width
        layers += [nn.SiLU(inplace=True), nn.Conv2d(inputs, 12, 3, 1, 1), nn.PixelShuffle(2), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)

    @property
    def image_size(self) -> int:
        return self.feature_shape[1] << len(self.stages)

    def forward(self, features: Tensor) -> Tensor:
        images: Tensor = self.layers(features.view(-1, *self.feature_shape))
        return images
