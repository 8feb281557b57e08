"""What photos look like, as far as second moments go: DCT × colors, with a spectrum that falls with
frequency.

In this orthonormal basis the components of photos are nearly uncorrelated. Component (k, c) of
frequency k = √(k_x² + k_y²) half waves a side and color c has the variance

    h² = H W A_c / (k² + k₀²)^β_c        and, for k = 0, H W D_c

whatever the size, because photos look alike at every scale (Field 1987; van der Schaaf and van
Hateren 1996). The sum of all h² is the variance of all pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Rows: brightness, blue against red, green against both; close to the principal colors of photos
# (angles below 4°).
COLORS = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 1.0], [1.0, -2.0, 1.0]], dtype=torch.float64)
COLORS = COLORS / COLORS.norm(dim=1, keepdim=True)


@dataclass(frozen=True)
class Spectrum:
    """Of one color. Pixels are from 0 to 1."""

    density: float  # A_c: variance for each component, times k^2β
    corner: float  # k₀ [half waves a side]
    fall: float  # β
    still: float  # D_c: variance of the mean over a photo


# Least squares over log variances, each frequency weighted by 1/k, of the central squares of 1 500
# photos of ImageNet's validation set at 64² (photo_spectrum.py of commit d5b3ef72).
SPECTRA = (
    Spectrum(0.05212, 1.53, 1.26, 0.0472),
    Spectrum(0.01059, 2.35, 1.49, 0.00754),
    Spectrum(0.001548, 2.06, 1.36, 0.00187),
)


def photo_spread(shape: tuple[int, ...] | torch.Size) -> Tensor:
    """(C, H, W) h of every component, in float64; one channel is brightness alone."""
    channels, height, width = shape
    k = frequencies(height, width)
    return torch.stack([_spread(SPECTRA[c], k, 3 if channels == 1 else 1) for c in range(channels)])


def frequencies(height: int, width: int) -> Tensor:
    """(H, W) k of every component, in half waves along the longer side."""
    side = max(height, width)
    down = torch.arange(height, dtype=torch.float64) * (side / height)
    across = torch.arange(width, dtype=torch.float64) * (side / width)
    return (down[:, None] ** 2 + across**2).sqrt()


def component(shape: tuple[int, ...] | torch.Size, place: int) -> Tensor:
    """(C, H, W) the basis picture of the flat index `place`, of length 1."""
    channels, height, width = shape
    color, rest = divmod(place, height * width)
    down, across = divmod(rest, width)
    wave = cosines(height)[down][:, None] * cosines(width)[across]
    tint = COLORS[color] if channels == 3 else torch.ones(1, dtype=torch.float64)
    return tint[:, None, None] * wave


def coefficients(images: Tensor) -> Tensor:
    """(B, C, H, W) of the same basis."""
    height, width = images.shape[2:]
    waves = cosines(height) @ images.double() @ cosines(width).T
    return torch.einsum("dc,bchw->bdhw", COLORS, waves) if images.shape[1] == 3 else waves


def pictures_of(sizes: Tensor) -> Tensor:
    """(B, C, H, W) whose `coefficients` these are."""
    height, width = sizes.shape[2:]
    waves = cosines(height).T @ sizes.double() @ cosines(width)
    return torch.einsum("dc,bdhw->bchw", COLORS, waves) if sizes.shape[1] == 3 else waves


def _spread(spectrum: Spectrum, k: Tensor, share: int) -> Tensor:
    variance = spectrum.density / (k.square() + spectrum.corner**2) ** spectrum.fall
    variance[0, 0] = spectrum.still
    return (variance * k.numel() / share).sqrt()


def cosines(length: int) -> Tensor:
    """(n, n) the orthonormal DCT-II: row k has k half waves over n places.

    >>> bool(torch.allclose(cosines(5) @ cosines(5).T, torch.eye(5).double()))
    True
    """
    k = torch.arange(length, dtype=torch.float64)[:, None]
    n = torch.arange(length, dtype=torch.float64)
    scale = torch.full((length, 1), math.sqrt(2 / length), dtype=torch.float64)
    scale[0] = math.sqrt(1 / length)
    return scale * torch.cos(math.pi * (n + 0.5) * k / length)
