"""Products with large float32 matrices in float64, block by block: no float64 copy of the whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# [values] converted at a time. Chosen by: 2 MB stay in the processor's cache.
_BLOCK = 1 << 18


def _rows(matrix: Tensor) -> Iterator[slice]:
    step = max(1, _BLOCK // max(matrix.shape[1], 1))
    return (slice(start, start + step) for start in range(0, len(matrix), step))


def left_product(mixing: Tensor, matrix: Tensor) -> tuple[Tensor, float]:
    """mixing @ matrix for mixing (k, n) and matrix (n, D), and ‖matrix‖², in one pass."""
    product = torch.zeros(len(mixing), matrix.shape[1], dtype=torch.float64, device=matrix.device)
    squares = 0.0
    for rows in _rows(matrix):
        block = matrix[rows].double()
        product.addmm_(mixing[:, rows], block)
        squares += float(torch.linalg.vector_norm(block)) ** 2
    return product, squares


def right_product(matrix: Tensor, basis: Tensor) -> Tensor:
    """matrix @ basis.T for matrix (n, D) and basis (k, D)."""
    return torch.cat([matrix[rows].double() @ basis.T for rows in _rows(matrix)])


def residual_norm(matrix: Tensor, left: Tensor, right: Tensor) -> float:
    """‖matrix − left.T @ right‖ for left (k, n) and right (k, D)."""
    squares = 0.0
    for rows in _rows(matrix):
        squares += float((matrix[rows].double() - left[:, rows].T @ right).square_().sum())
    return float(squares**0.5)
