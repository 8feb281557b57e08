"""Update → every sample's features, logits and labels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.models.language import is_tied
from unsum.progress import SILENT, Progress
from unsum.separate import (  # noqa: F401 (registers them)
    adaptive,
    cocktail,
    crowded,
    exact,
    fgla,
    label_rules,
    local_steps,
    phong,
    rgla,
    soft,
    text,
)
from unsum.separate.crowded import suits_crowded
from unsum.separate.losses import Loss, advice, declared, fitting_loss, separate_declared
from unsum.separate.method import SEPARATORS
from unsum.separate.options import check_options, reports_progress, takes_model
from unsum.separate.rgla import estimated_loss
from unsum.update import Update

__all__ = ["SEPARATORS", "estimated_loss", "separate"]


def separate(
    model: nn.Module,
    update: Update,
    method: str | None = None,
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
    loss: str | Loss | None = None,
    **options: Any,
) -> Leak:
    """Take the sum over a batch apart: every sample's features, logits and label out of one update.

    Args:
        model: the model the client trained, with the weights it started from.
        update: what the server received.
        method: a name from `unsum list`. By default `exact`; but `text` for language models whose head is their embedding,
            and `crowded` where labels are granted for more samples than the head's gradient has directions.
        labels: (B,) class numbers or (B, C) probabilities if the attacker knows them, `None` if it must find them.
        batch_size: B if the attacker knows it; taken from the update where the protocol discloses it.
        device: where to compute; the model's own device by default.
        seed: fixes every random choice.
        progress: told the steps of the methods that iterate.
        loss: what the client minimized, if not cross-entropy: `bce`, `mse`, `focal:GAMMA`, or an object of
            `unsum.separate.losses`. Only `exact` knows other losses. By default cross-entropy, unless the update itself
            contradicts that and one of `mse` and `bce` explains it.
        options: the method's own, as in `separate(model, update, "rgla", steps=5000, objectives=("w", "loss"))`.

    Returns:
        A `Leak` in the attacker's own order, with its certificate.
    """
    other = declared(loss)
    disclosed = update.batch_size if labels is None and batch_size is None else batch_size
    loss_name = "cross-entropy" if other is None else other.name
    knowledge = Knowledge(labels=labels, batch_size=disclosed, loss=loss_name, training=update.training)
    start = time.perf_counter()
    head = Head.of(model, update, device)
    if method is None:
        method = "exact" if other is not None else usual_method(model, head, knowledge)
    elif method == "exact" and is_tied(model):
        raise UnsumError(
            "The head of this model is its embedding, whose gradients 'exact' cannot tell apart; use 'text', or 'auto'."
        )
    if other is not None and method != "exact":
        raise UnsumError(f"The attack {method!r} assumes cross-entropy; use 'exact' for the loss {other.name!r}.")
    separator = cast("Callable[..., Leak]", SEPARATORS[method])
    check_options(method, separator, options)
    if reports_progress(separator):
        options["progress"] = progress
    if takes_model(separator):
        options |= {"model": model, "update": update}
    if other is not None:
        leak = separate_declared(head, knowledge, other, seed=seed)
    else:
        fitting = fitting_loss(head, knowledge, seed=seed) if method == "exact" and loss is None else None
        leak = fitting or separator(head, knowledge, seed=seed, **options)
        if method == "exact" and not leak.exact:
            leak = replace(leak, notes=[*leak.notes, *filter(None, [advice(head)])])
    granted = replace(knowledge, auxiliary_photos=leak.knowledge.auxiliary_photos)  # a method says which photos it used
    return replace(leak, knowledge=granted, seconds=time.perf_counter() - start)


def usual_method(model: nn.Module, head: Head, knowledge: Knowledge) -> str:
    """What `separate` does by default; see there."""
    if is_tied(model):
        return "text"
    return "crowded" if suits_crowded(head, knowledge) else "exact"
