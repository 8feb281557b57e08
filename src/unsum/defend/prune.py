"""Magnitude pruning: only the largest entries are sent, of each tensor or of all tensors
together."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unsum.defend.defense import DEFENSES, FRACTION, Defense, TensorDefense, require
from unsum.update import Update


class _Pruning(Defense):
    axis = FRACTION

    def __init__(self, fraction: float) -> None:
        what = "Pruning needs a fraction of at least 0 and below 1"
        super().__init__(require(0 <= fraction < 1, what, fraction))

    def dropped(self, total: int) -> int:
        """How many of `total` entries are not sent. Rounded first: of 10, 0.9 drops nine although
        it is no binary fraction."""
        return min(int(round(self.strength * total, 6)), total - 1)


@DEFENSES.register(
    "prune", summary="set this fraction of each tensor's entries, the smallest, to zero"
)
class Prune(_Pruning, TensorDefense):
    """Keeps the ceil((1 − fraction) · n) largest entries of each tensor, at least one.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> unsum.Prune(0.5)(update).gradients["w"]
        tensor([ 3., -4.,  0.])
    """

    def changed(self, gradient: Tensor) -> Tensor:
        flat = gradient.flatten()
        dropped = self.dropped(flat.numel())
        kept = flat.numel() - dropped
        if kept < dropped:  # the shorter list is found faster
            largest = flat.abs().topk(kept, sorted=False).indices
            return torch.zeros_like(flat).index_copy(0, largest, flat[largest]).view_as(gradient)
        smallest = flat.abs().topk(dropped, largest=False, sorted=False).indices
        return flat.index_fill(0, smallest, 0).view_as(gradient)


@DEFENSES.register(
    "prune-global",
    summary="set this fraction of all entries, the smallest over all tensors, to zero",
)
class PruneGlobal(_Pruning):
    """Keeps the ceil((1 − fraction) · n) largest of the n entries of all tensors together, at least
    one.

    A layer of small gradients may vanish altogether, which pruning per tensor (`Prune`) never does.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> unsum.PruneGlobal(0.5)(update).gradients["w"]
        tensor([ 3., -4.,  0.])
    """

    def __call__(self, update: Update) -> Update:
        flat = torch.cat([g.flatten() for g in update.gradients.values()])
        mask = torch.zeros_like(flat, dtype=torch.bool)
        mask[flat.abs().topk(len(flat) - self.dropped(len(flat)), sorted=False).indices] = True
        masks = mask.split([g.numel() for g in update.gradients.values()])
        pruned = {
            name: g.where(kept.view_as(g), g.new_zeros(()))
            for (name, g), kept in zip(update.gradients.items(), masks, strict=True)
        }
        return replace(update, gradients=pruned)
