"""Clipping to a Euclidean norm, of the whole update or of every tensor by itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsum.defend.defense import DEFENSES, NORM, Defense, TensorDefense, require
from unsum.update import Update


class _Clipping(Defense):
    axis = NORM

    def __init__(self, norm: float) -> None:
        super().__init__(require(0 < norm < math.inf, "Clipping needs a positive norm", norm))

    def factor(self, norm: Tensor) -> float:
        """min(1, c / ‖g‖)."""
        return min(1.0, self.strength / max(float(norm), torch.finfo(torch.float64).tiny))


@DEFENSES.register("clip", summary="scale the whole update down to at most this Euclidean norm")
class Clip(_Clipping):
    """g · min(1, c / ‖g‖), the norm taken over all tensors together.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> unsum.Clip(2.5)(update).gradients["w"]
        tensor([ 1.4926, -1.9901,  0.2488])
    """

    def __call__(self, update: Update) -> Update:
        factor = self.factor(
            torch.stack([g.double().norm() for g in update.gradients.values()]).norm()
        )
        return update.map(lambda _name, g: g * factor)


@DEFENSES.register("clip-layers", summary="scale each tensor down to at most this Euclidean norm")
class ClipLayers(_Clipping, TensorDefense):
    """g_l · min(1, c / ‖g_l‖) for every parameter tensor l, so that each has a factor of its own.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> unsum.ClipLayers(2.5)(update).gradients["w"]
        tensor([ 1.4926, -1.9901,  0.2488])
    """

    def changed(self, gradient: Tensor) -> Tensor:
        return gradient * self.factor(gradient.double().norm())
