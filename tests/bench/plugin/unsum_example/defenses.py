"""`shrink`: the update times a factor."""

from __future__ import annotations

from dataclasses import replace

from unsum.defend import DEFENSES, Defense
from unsum.update import Update


@DEFENSES.register("shrink", summary="multiply the update by this factor")
class Shrink(Defense):
    example = 0.25

    def __call__(self, update: Update) -> Update:
        return replace(
            update, gradients={name: g * self.strength for name, g in update.gradients.items()}
        )
