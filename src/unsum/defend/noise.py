"""Gaussian noise on every entry of the update."""

from __future__ import annotations

import math

import torch

from unsum.defend.axis import Axis
from unsum.defend.defense import DEFENSES, Defense
from unsum.errors import UnsumError
from unsum.update import Update


@DEFENSES.register("noise", summary="Gaussian noise of this standard deviation on every entry")
class Noise(Defense):
    """g + N(0, σ²), drawn from torch's global generator (`torch.manual_seed` makes it repeatable).

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> _ = torch.manual_seed(0)
        >>> unsum.Noise(0.01)(update).gradients["w"]
        tensor([ 3.0154, -4.0029,  0.4782])
    """

    axis = Axis("standard deviation")

    def __init__(self, std: float) -> None:
        if not (std >= 0 and math.isfinite(std)):
            raise UnsumError(f"Noise needs a standard deviation of at least 0, not {std}.")
        super().__init__(std)

    def __call__(self, update: Update) -> Update:
        return update.map(lambda _name, g: g + self.strength * torch.randn_like(g))
