"""A whole attack: separate the batch, then turn its features into pictures where that is possible."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, unknown_name
from unsum.invert import invert, load_inverse
from unsum.leak import Leak
from unsum.separate import SEPARATORS, separate
from unsum.update import Update

Say = Callable[[str], None]
AUTO = "auto"
_HOPELESS = 0.3  # predicted relative error above which the exact solver's own features are worth little


def attack(
    model: nn.Module,
    update: Update,
    recipe: str = AUTO,
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    inverse: str | Path | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Say | None = None,
) -> Leak:
    """Everything that can be read out of one update: a `Leak`, with `.images` where the model has an inverse.

    Args:
        recipe: `auto` takes the exact solver, or the ratio method where the solver itself expects to fail (a noisy
            gradient, say); any other name is a separator from `unsum list`.
        labels, batch_size: what the attacker knows besides, as in `separate`.
        inverse: a trained inverse for this model's backbone; the embedded one by default.
        progress: called with a sentence when a new stage begins.
    """
    check_recipe(recipe)
    say = progress or (lambda _sentence: None)
    start = time.perf_counter()
    say("Separating the batch")
    known: dict[str, Any] = {"labels": labels, "batch_size": batch_size, "device": device, "seed": seed}
    leak = _auto(model, update, known) if recipe == AUTO else separate(model, update, recipe, **known)
    say("Turning features into pictures")
    try:
        loaded = load_inverse(model, inverse)
    except UnsumError as reason:
        if inverse is not None:  # asked for by name: a refusal must not pass as a note
            raise
        return replace(leak, notes=[*leak.notes, str(reason)])
    images = invert(model, leak, inverse=loaded)
    knowledge = replace(leak.knowledge, auxiliary_photos=loaded.photos)
    return replace(leak, images=images, knowledge=knowledge, seconds=time.perf_counter() - start)


def check_recipe(recipe: str) -> None:
    """Refuse an unknown recipe, before anything is computed for it."""
    names = [AUTO, *(entry.name for entry in SEPARATORS)]
    if recipe not in names:
        raise unknown_name("attack", recipe, names)


def _auto(model: nn.Module, update: Update, known: dict[str, Any]) -> Leak:
    """The exact solver, unless its own prediction says that the cruder ratio method will serve better."""
    leak = separate(model, update, "exact", **known)
    if leak.predicted_error < _HOPELESS:
        return leak
    try:
        crude = separate(model, update, "fgla", **known)
    except UnsumError:  # no bias gradient, or every class present: nothing to fall back to
        return leak
    reason = f"The exact solver predicted an error of {leak.predicted_error:.1g}, so the ratio method (fgla) was used instead."
    return replace(crude, seconds=leak.seconds + crude.seconds, notes=[reason, *crude.notes])
