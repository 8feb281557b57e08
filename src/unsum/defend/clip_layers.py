"""Clipping of every tensor of the update by itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsum.defend.axis import NORM
from unsum.defend.defense import DEFENSES, Defense
from unsum.errors import UnsumError
from unsum.update import Update


@DEFENSES.register("clip-layers", summary="scale each tensor down to at most this Euclidean norm")
class ClipLayers(Defense):
    """g_l · min(1, c / ‖g_l‖) for every parameter tensor l, so that each has a factor of its own.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> unsum.ClipLayers(2.5)(update).gradients["w"]
        tensor([ 1.4926, -1.9901,  0.2488])
    """

    axis = NORM

    def __init__(self, norm: float) -> None:
        if not (norm > 0 and math.isfinite(norm)):
            raise UnsumError(f"Clipping needs a positive norm, not {norm}.")
        super().__init__(norm)

    def __call__(self, update: Update) -> Update:
        def clipped(_name: str, gradient: Tensor) -> Tensor:
            norm = max(float(gradient.double().norm()), torch.finfo(torch.float64).tiny)
            return gradient * min(1.0, self.strength / norm)

        return update.map(clipped)
