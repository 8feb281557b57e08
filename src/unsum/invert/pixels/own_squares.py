"""Conjugate gradients, helped: each picture's own JᵀJ, inverted, with the batch's statistics held.

After training the equations are badly conditioned, and hundreds of products of J end without an answer. What makes them so is
inside each picture: neighboring pixels that the network hardly tells apart. That part is a matrix of one picture's pixels, small
enough to be computed, column by column, and inverted. What ties a batch together, BatchNorm's statistics, is left to conjugate
gradients. On a trained network of four pictures of 16², condition 300, a step takes 24 products instead of 237.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from unsum.invert.pixels.equations import Equations, Product

_MOST = 8192  # pixels of a picture: a matrix of 270 MB
_RIDGE = 1e-6  # of the mean of the diagonal: what float32 leaves of JᵀJ
# Columns take one product each, many at once: a GPU does hundreds in the time of a few, so a matrix costs fewer products there.
_WORTH = {"cpu": 0.3, "cuda": 0.04}  # products, beside the number of pixels, after which a matrix would have paid
_AT_ONCE = {"cpu": 16, "cuda": 256}


class OwnSquares:
    """JᵀJ of every picture by its own pixels (B, n, n), as of the pictures that were seen last; empty at first."""

    def __init__(self) -> None:
        self.squares: Tensor | None = None
        self.products = 0  # of J and Jᵀ since then

    def due(self, pictures: Tensor) -> bool:
        """Whether products have cost what a matrix costs: pictures have changed since, or there is none yet."""
        n, kind = pictures[0].numel(), pictures.device.type
        return n <= _MOST and self.products > _WORTH.get(kind, 0.3) * n

    def look(self, equations: Equations, pictures: Tensor) -> None:
        """Compute the matrices at `pictures`."""
        alone = replace(equations, hint=None)  # gradients tie the batch together, too
        tied = equations.ties
        if tied:
            alone.hold(pictures)
        try:
            self.squares = torch.stack([_square(alone, pictures, row) for row in range(len(pictures))])
        finally:
            if tied:
                equations.release()
        self.products = 0

    def divide(self, damping: Tensor, like: Tensor) -> Product:
        """v ↦ (JᵀJ + damping)⁻¹ v for v as large as `like`; v itself where there are no matrices of that size."""
        if self.squares is None or self.squares.shape[:2] != like.flatten(1).shape:
            return lambda v: v
        dampings = damping.flatten().double()
        inverses = torch.stack(
            [
                _inverse(square.double(), more).to(like.dtype)
                for square, more in zip(self.squares, dampings, strict=True)
            ]
        )
        return lambda v: (inverses @ v.flatten(1)[:, :, None]).view_as(v)


def _inverse(square: Tensor, damping: Tensor) -> Tensor:
    square.diagonal().add_(damping + _RIDGE * square.diagonal().mean())
    return torch.cholesky_inverse(torch.linalg.cholesky(square))


def _square(alone: Equations, pictures: Tensor, row: int) -> Tensor:
    """(n, n) of one picture: as many copies of it as fit, each with a unit vector of its own."""
    n = pictures[row].numel()
    copies = min(_AT_ONCE.get(pictures.device.type, 16), n)
    rows = torch.full((copies,), row, device=pictures.device)
    linear = alone.of(rows).linear(lambda x: x, pictures[rows])
    columns = []
    for first in range(0, n, copies):
        unit = torch.zeros(copies, n, device=pictures.device, dtype=pictures.dtype)
        number = torch.arange(min(copies, n - first), device=pictures.device)
        unit[number, first + number] = 1
        columns.append(linear.forward(unit.view(copies, *pictures.shape[1:])).flatten(1)[: len(number)])
    J = torch.cat(columns)  # (n, m): Jᵀ
    return (J @ J.T).float()
