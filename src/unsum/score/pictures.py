"""How near one picture comes to another: PSNR, structural similarity, and whether they look alike
up to their tone.

Written out, and tested against torchmetrics: importing that takes longer than an audit, because it
loads transformers, matplotlib and PyTorch's compiler.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

# dB at which a difference is below what float32 pixels hold; keeps averages finite
_PERFECT = 100.0
_FLAT = 1e-12  # product of two pictures' deviations below which one of them is a single tone
_WINDOW, _DEVIATION = 11, 1.5  # pixels, of the Gaussian window
_C1, _C2 = 0.01**2, 0.03**2  # as published, for pixels in [0, 1]


def psnr(found: Tensor, true: Tensor) -> float:
    """10 log10(1 / MSE) of one (3, h, w) picture in [0, 1], at most 100 dB."""
    error = float((found - true).square().mean())
    return min(-10 * math.log10(error), _PERFECT) if error > 0 else _PERFECT


def picture_cosine(found: Tensor, true: Tensor) -> float:
    """Of two (c, h, w) pictures without the mean of each channel: brightness, tint and contrast do
    not count.

    A dark, pale or tinted copy is as easy to recognize as the picture, and as far from it in pixels
    as gray. NaN where one of the two is a single tone.

    >>> photo = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> round(picture_cosine(0.2 + 0.1 * photo, photo), 4)
    1.0
    """
    pictures = (picture.double() for picture in (found, true))
    a, b = ((picture - picture.mean((1, 2), keepdim=True)).flatten() for picture in pictures)
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths > _FLAT * a.numel() else math.nan


def ssim(found: Tensor, true: Tensor) -> float:
    """Structural similarity of one (3, h, w) picture in [0, 1], 11×11 Gaussian window."""
    return float(structural_similarity(found[None], true[None]))


def structural_similarity(found: Tensor, true: Tensor) -> Tensor:
    """Its mean over (B, c, h, w) pictures, mirrored at their edges."""
    x, y = (F.pad(part.float(), [_WINDOW // 2] * 4, mode="reflect") for part in (found, true))
    steps = torch.arange(_WINDOW, device=x.device) - _WINDOW // 2
    bell = torch.exp(-((steps / _DEVIATION) ** 2) / 2)
    bell = bell / bell.sum()
    window = (bell[:, None] * bell).expand(x.shape[1], 1, -1, -1).to(x)
    moments = F.conv2d(torch.cat([x, y, x * x, y * y, x * y]), window, groups=x.shape[1])
    mean_x, mean_y, xx, yy, xy = moments.split(len(x))
    spread = (xx - mean_x**2).clamp_min(0) + (yy - mean_y**2).clamp_min(0)
    alike = (2 * mean_x * mean_y + _C1) * (2 * (xy - mean_x * mean_y) + _C2)
    return (alike / ((mean_x**2 + mean_y**2 + _C1) * (spread + _C2))).mean()
