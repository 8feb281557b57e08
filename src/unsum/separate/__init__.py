"""Update → every sample's features, logits and labels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate import adaptive, cocktail, exact, fgla, local_steps, phong, rgla, rgla_newton, soft  # noqa: F401 (registers)
from unsum.separate.method import SEPARATORS
from unsum.separate.options import check_options, reports_progress
from unsum.separate.rgla_loss import estimated_loss
from unsum.update import Update

__all__ = ["SEPARATORS", "estimated_loss", "separate"]


def separate(
    model: nn.Module,
    update: Update,
    method: str = "exact",
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Callable[..., None] | None = None,
    **options: Any,
) -> Leak:
    """Take the sum over a batch apart: every sample's features, logits and label out of one update.

    Args:
        model: the model the client trained, with the weights it started from.
        update: what the server received.
        method: a name from `unsum list`.
        labels: (B,) class numbers or (B, C) probabilities if the attacker knows them, `None` if it must find them.
        batch_size: B if the attacker knows it; taken from the update where the protocol discloses it.
        device: where to compute; the model's own device by default.
        seed: fixes every random choice.
        progress: called now and then as `progress(step, *losses)` by the methods that iterate; the others never call it.
        options: the method's own, as in `separate(model, update, "rgla", steps=5000, objectives=("w", "loss"))`.

    Returns:
        A `Leak` in the attacker's own order, with its certificate.
    """
    separator = cast("Callable[..., Leak]", SEPARATORS[method])
    check_options(method, separator, options)
    if reports_progress(separator):
        options["progress"] = progress
    disclosed = update.batch_size if labels is None and batch_size is None else batch_size
    knowledge = Knowledge(labels=labels, batch_size=disclosed, training=update.training)
    start = time.perf_counter()
    leak = separator(Head.of(model, update, device), knowledge, seed=seed, **options)
    granted = replace(knowledge, auxiliary_photos=leak.knowledge.auxiliary_photos)  # a method says which photos it used
    return replace(leak, knowledge=granted, seconds=time.perf_counter() - start)
