"""Clipping of the whole update to a Euclidean norm."""

from __future__ import annotations

import math

import torch

from unsum.defend.axis import NORM
from unsum.defend.defense import DEFENSES, Defense
from unsum.errors import UnsumError
from unsum.update import Update


@DEFENSES.register("clip", summary="scale the whole update down to at most this Euclidean norm")
class Clip(Defense):
    """g · min(1, c / ‖g‖), the norm taken over all tensors together.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> unsum.Clip(2.5)(update).gradients["w"]
        tensor([ 1.4926, -1.9901,  0.2488])
    """

    axis = NORM

    def __init__(self, norm: float) -> None:
        if not (norm > 0 and math.isfinite(norm)):
            raise UnsumError(f"Clipping needs a positive norm, not {norm}.")
        super().__init__(norm)

    def __call__(self, update: Update) -> Update:
        total = torch.stack([g.double().norm() for g in update.gradients.values()]).norm()
        factor = min(1.0, self.strength / max(float(total), torch.finfo(torch.float64).tiny))
        return update.map(lambda _name, g: g * factor)
