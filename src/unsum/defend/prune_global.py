"""Magnitude pruning over the whole update: the largest entries are sent, whichever tensor they are in."""

from __future__ import annotations

from dataclasses import replace

import torch

from unsum.defend.axis import FRACTION
from unsum.defend.defense import DEFENSES, Defense
from unsum.errors import UnsumError
from unsum.update import Update


@DEFENSES.register("prune-global", summary="set this fraction of all entries, the smallest over all tensors, to zero")
class PruneGlobal(Defense):
    """Keeps the ceil((1 − fraction) · n) largest of the n entries of all tensors together, at least one.

    A layer of small gradients may vanish altogether, which pruning per tensor (`Prune`) never does.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> unsum.PruneGlobal(0.5)(update).gradients["w"]
        tensor([ 3., -4.,  0.])
    """

    axis = FRACTION

    def __init__(self, fraction: float) -> None:
        if not 0 <= fraction < 1:
            raise UnsumError(f"Pruning needs a fraction of at least 0 and below 1, not {fraction}.")
        super().__init__(fraction)

    def __call__(self, update: Update) -> Update:
        sizes = {name: g.numel() for name, g in update.gradients.items()}
        magnitudes = torch.cat([g.flatten().abs() for g in update.gradients.values()])
        total = len(magnitudes)
        # Rounded first: 0.9 · 10 must drop nine entries although 0.9 is not a binary fraction.
        kept = max(total - int(round(self.strength * total, 6)), 1)
        mask = torch.zeros_like(magnitudes, dtype=torch.bool)
        mask[magnitudes.topk(kept, sorted=False).indices] = True
        masks = dict(zip(sizes, mask.split(list(sizes.values())), strict=True))
        return replace(
            update, gradients={n: g.where(masks[n].view_as(g), g.new_zeros(())) for n, g in update.gradients.items()}
        )
