"""Conjugate gradients, helped: each picture's own JᵀJ, inverted, with the batch's statistics held.

After training the equations are badly conditioned, and hundreds of products of J end without an
answer. What makes them so is inside each picture: neighboring pixels that the network hardly tells
apart. That part is a matrix of one picture's pixels, small enough to be computed, column by column,
and inverted. What ties a batch together, BatchNorm's statistics, is left to conjugate gradients. On
a trained network of four pictures of 16², condition 300, a step takes 24 products instead of 237.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unsum.gradients import TINY
from unsum.invert.pixels.equations import Equations, OwnSquares, Product

_MOST = 8192  # pixels of a picture: a matrix of 270 MB
_RIDGE = 1e-6  # of the mean of the diagonal: what float32 leaves of JᵀJ
_GROWTHS = 9  # of the ridge, tenfold each: up to a hundred times that mean
# Columns take one product each, many at once: a GPU does hundreds in the time of a few, so a matrix
# costs fewer products there. products, beside the number of pixels, after which a matrix would have
# paid
_WORTH = {"cpu": 0.3, "cuda": 0.04}
_AT_ONCE = {"cpu": 16, "cuda": 256}


def are_due(own: OwnSquares, pictures: Tensor) -> bool:
    """Whether products have cost what a matrix costs: pictures have changed since, or there is none
    yet."""
    n, kind = pictures[0].numel(), pictures.device.type
    return n <= _MOST and own.products > _WORTH.get(kind, 0.3) * n


def compute(equations: Equations, pictures: Tensor) -> None:
    """The matrices at `pictures`, kept with the equations."""
    alone = replace(equations, hint=None)  # gradients tie the batch together, too
    tied = equations.ties
    if tied:
        alone.hold(pictures)
    try:
        equations.own.squares = torch.stack(
            [_square(alone, pictures, row) for row in range(len(pictures))]
        )
    finally:
        if tied:
            equations.release()
    equations.own.products = 0


def divided_by(own: OwnSquares, damping: Tensor, like: Tensor) -> Product:
    """v ↦ (JᵀJ + damping)⁻¹ v for v as large as `like`; v itself where there are no matrices of
    that size."""
    if own.squares is None or own.squares.shape[:2] != like.flatten(1).shape:
        return lambda v: v
    each = zip(own.squares, damping.flatten().double(), strict=True)
    inverses = torch.stack(
        [_inverse(square.double(), more).to(like.dtype) for square, more in each]
    )
    return lambda v: (inverses @ v.flatten(1)[:, :, None]).view_as(v)


def _inverse(square: Tensor, damping: Tensor) -> Tensor:
    """Of a matrix that float32 may have left with eigenvalues below zero: the ridge grows until it
    has none."""
    ridge = _RIDGE * square.diagonal().mean().clamp_min(TINY)
    square.diagonal().add_(damping)
    for _ in range(_GROWTHS):
        square.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(square)
        if not bool(failed):
            return torch.cholesky_inverse(factor)
        ridge = 10 * ridge
    return torch.eye(len(square)).to(square)  # it is not finite


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
        columns.append(
            linear.forward(unit.view(copies, *pictures.shape[1:])).flatten(1)[: len(number)]
        )
    J = torch.cat(columns)  # (n, m): Jᵀ
    return (J @ J.T).float()
