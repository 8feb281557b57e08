"""Laplace noise on every entry of the update, as the Laplace mechanism adds it."""

from __future__ import annotations

import math

import torch

from unsum.defend.axis import Axis
from unsum.defend.defense import DEFENSES, Defense
from unsum.errors import UnsumError
from unsum.update import Update


@DEFENSES.register("laplace", summary="Laplace noise of this scale b (standard deviation √2·b) on every entry")
class Laplace(Defense):
    """g + Laplace(0, b): density e^(−|x|/b) / 2b, drawn from torch's global generator.

    The difference of two exponential variables of mean b has this distribution.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> _ = torch.manual_seed(0)
        >>> unsum.Laplace(0.01)(update).gradients["w"]
        tensor([ 3.0097, -3.9981,  0.4905])
    """

    axis = Axis("scale b")

    def __init__(self, scale: float) -> None:
        if not (scale >= 0 and math.isfinite(scale)):
            raise UnsumError(f"Laplace noise needs a scale of at least 0, not {scale}.")
        super().__init__(scale)

    def __call__(self, update: Update) -> Update:
        def noisy(_name: str, gradient: torch.Tensor) -> torch.Tensor:
            one, other = torch.empty_like(gradient).exponential_(), torch.empty_like(gradient).exponential_()
            return gradient + self.strength * (one - other)

        return update.map(noisy)
