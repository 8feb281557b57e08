"""Photos cut out of the embedded ones, for tests that need many."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsum.data import embedded_batch, photo_count

SIZE = 32


def cut(count: int, seed: int = 0, *, grid: bool = True) -> Tensor:
    """(count, 3, 32, 32) random cuts of the embedded photos; with `grid` their pixels are those of
    8-bit pictures."""
    generator = torch.Generator().manual_seed(seed)
    photos = embedded_batch(photo_count(), image_size=96).images
    made = []
    for i in torch.randint(len(photos), (count,), generator=generator).tolist():
        side = int(torch.randint(24, 80, (1,), generator=generator))
        top, left = torch.randint(96 - side, (2,), generator=generator).tolist()
        crop = photos[i, :, top : top + side, left : left + side]
        made.append(nn.functional.interpolate(crop[None], size=SIZE, mode="area")[0])
    stacked = torch.stack(made)
    return (255 * stacked).round() / 255 if grid else stacked


def distances(found: Tensor, true: Tensor) -> Tensor:
    """(N, B) PSNR of every reading against every photo."""
    apart = (
        torch.cdist(found.flatten(1).double(), true.flatten(1).double()) / true[0].numel() ** 0.5
    )
    return -20 * apart.clamp_min(1e-8).log10()
