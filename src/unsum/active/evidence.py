"""Was it one sample? What a reading can be held against without the truth.

Two samples that resemble each other act alike on every layer, so that each layer reads the same mean of them: that several
readings agree excludes different samples, but no siblings. What excludes these is the grid of 8-bit pictures, or the number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.update import Update

_LEVELS = 255  # of an 8-bit picture
_OFF_GRID = 0.1  # in levels; pixels of a mixture of several pictures are spread evenly over ±0.5
_FEWEST = 64  # pixels, below which a mixture may lie on the grid by accident


def in_range(inputs: Tensor, limits: tuple[float, float] | None, slack: float = 1e-3) -> Tensor:
    """(N,) whether every entry is a possible pixel; True throughout where the range of inputs is not known."""
    if limits is None:
        return torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
    flat = inputs.flatten(1)
    return (flat.amin(1) >= limits[0] - slack) & (flat.amax(1) <= limits[1] + slack)


def on_grid(inputs: Tensor) -> Tensor:
    """(N,) whether all pixels are multiples of 1/255, as those of an 8-bit picture are and those of a mixture are not.

    Proof where it holds. Where it does not, the client may have resized or augmented its pictures.
    """
    flat = _LEVELS * inputs.flatten(1)
    if flat.shape[1] < _FEWEST:
        return torch.zeros(len(flat), dtype=torch.bool, device=inputs.device)
    several = (flat.amax(1) - flat.amin(1)) > 8  # a picture of one tone tells nothing
    return ((flat - flat.round()).abs().amax(1) < _OFF_GRID) & several


def counted(update: Update, found: int) -> bool:
    """Whether the protocol discloses that the batch holds as many samples as stand apart in the layer: one each."""
    return update.batch_size == found


def rounding(update_dtype: torch.dtype) -> float:
    return float(torch.finfo(update_dtype).eps)
