"""A whole attack: separate the batch, then turn its features into pictures where that is possible."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.invert import invert, load_inverse
from unsum.leak import Leak
from unsum.separate import separate
from unsum.update import Update

Report = Callable[[str], None]


def attack(
    model: nn.Module,
    update: Update,
    recipe: str = "auto",
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    inverse: str | Path | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Report | None = None,
) -> Leak:
    """Everything that can be read out of one update: a `Leak`, with `.images` where the model has an inverse.

    Args:
        recipe: `auto` takes the exact solver; any other name is a separator from `unsum list`.
        labels, batch_size: what the attacker knows besides, as in `separate`.
        inverse: a trained inverse for this model's backbone; the embedded one by default.
        progress: called with a sentence when a new stage begins.
    """
    say = progress or (lambda _sentence: None)
    start = time.perf_counter()
    say("Separating the batch")
    method = "exact" if recipe == "auto" else recipe
    leak = separate(model, update, method, labels=labels, batch_size=batch_size, device=device, seed=seed)
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
