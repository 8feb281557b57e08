"""Views of training photos. Whatever the backbone sees is a fair example for its inverse, so views
may be bold."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_WHOLE = 0.4  # share of the photos that stay nearly whole, as a victim's are
_SMALLEST_CROP = 0.35  # of the side
_PASTED, _COLLAGE = 0.35, 0.15  # share with a rectangle of another photo; share made of four photos


def augment(photos: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """(B, 3, s, s) uint8 → (B, 3, size, size) in [0, 1]: crops, flips, light, rectangles and
    collages of other photos."""
    images = _crop(photos.float() / 255, size, generator)
    images = _light(images, generator)
    images = _paste(images, generator)
    return _collage(images, generator).contiguous(memory_format=torch.channels_last)


def _uniform(B: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(B, device=generator.device, generator=generator)


def _crop(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    B, whole = len(images), _uniform(len(images), 0, 1, generator) < _WHOLE
    side = torch.where(
        whole, _uniform(B, 0.92, 1, generator), _uniform(B, _SMALLEST_CROP, 1, generator)
    )
    stretch = _uniform(B, -0.2, 0.2, generator).exp()
    sides = torch.stack([side * stretch, side / stretch], 1).clamp(max=1)
    shift = (torch.rand(B, 2, device=images.device, generator=generator) * 2 - 1) * (1 - sides)
    flip = torch.where(_uniform(B, 0, 1, generator) < 0.5, -1.0, 1.0)
    theta = torch.zeros(B, 2, 3, device=images.device)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = sides[:, 0] * flip, sides[:, 1], shift
    grid = F.affine_grid(theta, [B, 3, size, size], align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def _light(images: Tensor, generator: torch.Generator) -> Tensor:
    """Contrast, color and brightness of half of the photos."""

    def normal(channels: int) -> Tensor:
        return torch.randn(len(images), channels, 1, 1, device=images.device, generator=generator)

    chosen = (_uniform(len(images), 0, 1, generator) < 0.5).float().view(-1, 1, 1, 1)
    gain = 1 + chosen * (0.15 * normal(1) + 0.05 * normal(3))
    middle = images.mean((1, 2, 3), keepdim=True)
    return ((images - middle) * gain + middle + chosen * 0.06 * normal(1)).clamp(0, 1)


def _paste(images: Tensor, generator: torch.Generator) -> Tensor:
    """A rectangle of the neighbor's picture, at the same place."""
    B, size = len(images), images.shape[-1]
    place = torch.arange(size, device=images.device)
    extent = _uniform(B, 0.2, 0.8, generator)[:, None], _uniform(B, 0.2, 0.8, generator)[:, None]
    start = [_uniform(B, 0, 1, generator)[:, None] * (1 - e) * size for e in extent]
    rows, columns = (
        (place >= s) & (place < s + e * size) for s, e in zip(start, extent, strict=True)
    )
    chosen = _uniform(B, 0, 1, generator) < _PASTED
    mask = rows[:, None, :, None] & columns[:, None, None, :] & chosen[:, None, None, None]
    return torch.where(mask, images.roll(1, 0), images)


def _collage(images: Tensor, generator: torch.Generator) -> Tensor:
    """Four photos of the batch at half their size."""
    half = F.avg_pool2d(images, 2)
    if half.shape[-1] * 2 != images.shape[-1]:
        return images
    upper = torch.cat([half, half.roll(3, 0)], 3)
    four = torch.cat([upper, upper.roll(5, 0)], 2)
    chosen = _uniform(len(images), 0, 1, generator) < _COLLAGE
    return torch.where(chosen[:, None, None, None], four, images)
