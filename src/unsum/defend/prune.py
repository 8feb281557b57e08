"""Magnitude pruning: only the largest entries of each tensor are sent."""

from __future__ import annotations

from torch import Tensor

from unsum.defend.axis import FRACTION
from unsum.defend.defense import DEFENSES, Defense
from unsum.errors import UnsumError
from unsum.update import Update


@DEFENSES.register("prune", summary="set this fraction of each tensor's entries, the smallest, to zero")
class Prune(Defense):
    """Keeps the ceil((1 − fraction) · n) largest entries of each tensor, at least one.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> unsum.Prune(0.5)(update).gradients["w"]
        tensor([ 3., -4.,  0.])
    """

    axis = FRACTION

    def __init__(self, fraction: float) -> None:
        if not 0 <= fraction < 1:
            raise UnsumError(f"Pruning needs a fraction of at least 0 and below 1, not {fraction}.")
        super().__init__(fraction)

    def __call__(self, update: Update) -> Update:
        return update.map(lambda _name, g: self._prune(g))

    def _prune(self, gradient: Tensor) -> Tensor:
        flat = gradient.flatten()
        # Rounded first: 0.9 · 10 must drop nine entries although 0.9 is not a binary fraction.
        dropped = min(int(round(self.strength * flat.numel(), 6)), flat.numel() - 1)
        smallest = flat.abs().topk(dropped, largest=False).indices
        return flat.index_fill(0, smallest, 0).view_as(gradient)
