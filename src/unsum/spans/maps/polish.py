"""The last step: given what the layers above send back, ∇W of a convolution is linear in the maps
it read.

∇W = Σ over samples and places of δ ⊗ patch. With R the entries of δ at shifted places, (k² C_out,
B·pixels), every input channel is a least-squares problem with the same small matrix: R X = ∇W.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def maps_given(delta: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """(maps (B, C, h, w), deviations (B,) of each sample's map) from δ (B, O, h, w) and ∇W (O, C,
    k, k), padding k // 2."""
    kernel = (grad.shape[2], grad.shape[3])
    padding = (kernel[0] // 2, kernel[1] // 2)
    B, C = len(delta), grad.shape[1]
    grad = grad.double()
    # (B, O k k, pixels): what each pixel meets at every shift
    R = F.unfold(delta, kernel, padding=padding)
    R = (
        R.unflatten(1, (delta.shape[1], *kernel))
        .flip(2, 3)
        .flatten(1, 3)
        .transpose(0, 1)
        .flatten(1)
    )
    normal = R.T @ R
    right = F.conv_transpose2d(delta, grad, padding=padding)
    right = right.transpose(0, 1).flatten(1).T  # (B·pixels, C)
    inverse = torch.linalg.pinv(normal, hermitian=True, rtol=1e-13)
    X = inverse @ right
    left = (grad.square().sum() - (right * X).sum()).clamp_min(0) / max(1, grad.numel() - X.numel())
    maps = X.T.reshape(C, B, *delta.shape[2:]).transpose(0, 1).contiguous()
    variance = inverse.diagonal().clamp_min(0).view(B, -1).sum(1) * left * C
    return maps, variance.sqrt()
