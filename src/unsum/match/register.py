"""Seeds shifted onto each other before they are averaged: gradients say what is in a picture better than where it is.

The published registration finds a flow with a network of its own; here each picture is shifted as a whole, by the peak of its
correlation with the plain mean over seeds, no further than an eighth of its side.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FURTHEST = 8  # the side over this


def registered_mean(pictures: Tensor) -> Tensor:
    """(B, c, h, w) the mean over R seeds of (R, B, c, h, w) pictures, each shifted to agree best with the plain mean."""
    mean = pictures.mean(0)
    return _shifted(pictures, *_shifts(pictures, mean)).mean(0)


def _shifts(pictures: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """(R, B) how many rows down and columns across each picture goes."""
    h, w = mean.shape[-2:]
    far = (max(1, h // _FURTHEST), max(1, w // _FURTHEST))
    flat, own = mean - mean.mean((-2, -1), keepdim=True), pictures - pictures.mean((-2, -1), keepdim=True)
    correlation = torch.fft.irfft2(torch.fft.rfft2(flat) * torch.fft.rfft2(own).conj(), s=(h, w)).sum(-3)
    near = torch.roll(correlation, far, dims=(-2, -1))[..., : 2 * far[0] + 1, : 2 * far[1] + 1]
    peak = near.flatten(-2).argmax(-1)
    width = 2 * far[1] + 1
    return peak // width - far[0], peak % width - far[1]


def _shifted(pictures: Tensor, down: Tensor, across: Tensor) -> Tensor:
    h, w = pictures.shape[-2:]
    rows = (torch.arange(h, device=pictures.device) - down[..., None]) % h
    columns = (torch.arange(w, device=pictures.device) - across[..., None]) % w
    moved = torch.take_along_dim(pictures, rows[:, :, None, :, None], dim=-2)
    return torch.take_along_dim(moved, columns[:, :, None, None, :], dim=-1)
