"""Update → every sample's features, logits and labels."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate import exact, fgla, rgla, soft  # noqa: F401 (registers the methods)
from unsum.separate.method import SEPARATORS
from unsum.update import Update

__all__ = ["SEPARATORS", "separate"]


def separate(
    model: nn.Module,
    update: Update,
    method: str = "exact",
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
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

    Returns:
        A `Leak` in the attacker's own order, with its certificate.
    """
    separator = SEPARATORS[method]
    disclosed = update.batch_size if labels is None and batch_size is None else batch_size
    knowledge = Knowledge(labels=labels, batch_size=disclosed)
    start = time.perf_counter()
    leak = separator(Head.of(model, update, device), knowledge, seed=seed)
    return replace(leak, knowledge=knowledge, seconds=time.perf_counter() - start)
