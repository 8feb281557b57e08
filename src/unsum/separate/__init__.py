"""Update → every sample's features, logits and labels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from unsum.certify.doubts.network import doubt_network, withhold
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses import Loss, declared
from unsum.running.deadline import DEFAULT_LIMIT
from unsum.running.deadline import time_limit as limited_to
from unsum.running.declared import check_seed
from unsum.running.progress import SILENT, Progress
from unsum.running.sharing import sharing
from unsum.separate import (  # noqa: F401 (registers them)
    adaptive,
    cocktail,
    crowded,
    fgla,
    label_rules,
    local_steps,
    losses,
    phong,
    rgla,
    soft,
    text,
    uneven,
)
from unsum.separate.method import SEPARATORS
from unsum.separate.options import check_options, steps_of, takes
from unsum.separate.rgla import estimated_loss
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
    progress: Progress = SILENT,
    loss: str | Loss | None = None,
    time_limit: float | None = None,
    public: Tensor | None = None,
    **options: Any,
) -> Leak:
    """Take the sum over a batch apart: every sample's features, logits and label out of one update.

    Args:
        model: the model the client trained, with the weights it started from.
        update: what the server received.
        method: a name from `unsum list`; `unsum.attack` chooses one by itself.
        labels: (B,) class numbers or (B, C) probabilities if the attacker knows them, `None` if it
            must find them.
        batch_size: B if the attacker knows it; taken from the update where the protocol discloses
            it.
        device: where to compute; the model's own device by default.
        seed: fixes every random choice.
        progress: told the steps of the methods that iterate.
        loss: what the client minimized, if not cross-entropy: `bce`, `mse`, `focal:GAMMA`, or an
            object of `unsum.losses`. Only `exact` knows other losses. By default cross-entropy,
            unless the update itself contradicts that and one of `mse` and `bce` explains it.
        time_limit: seconds after which a search gives the best answer so far, without a claim and
            with a note on what was left
            untried: 60 by default, `math.inf` for as long as it takes. Methods that take a fixed
            number of steps have no limit by default. Inside of another search's limit, what is left
            of that is the default. A pass over a large head is not interrupted.
        public: inputs that anyone could have, without labels: what features look like under noise
            (`adaptive`).
        options: the method's own, as in `separate(model, update, "rgla", steps=5000,
            objectives=("w", "loss"))`.

    Returns:
        A `Leak` in the attacker's own order, with its certificate.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> inputs, labels = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> leak = unsum.separate(model, unsum.capture(model, inputs, labels))
        >>> sorted(leak.labels.tolist()), leak.exact
        ([1, 4, 4], True)
        >>> round(unsum.score(leak, features=inputs)["worst_feature_error"], 3)
        0.0
    """
    return answered(
        model,
        update,
        method,
        labels=labels,
        batch_size=batch_size,
        device=device,
        seed=seed,
        progress=progress,
        loss=loss,
        time_limit=time_limit,
        public=public,
        **options,
    ).published()


def answered(
    model: nn.Module,
    update: Update,
    method: str = "exact",
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
    loss: str | Loss | None = None,
    time_limit: float | None = None,
    public: Tensor | None = None,
    **options: Any,
) -> Leak:
    """`separate`, with the error by which attacks choose among their answers, whatever speaks
    against it."""
    check_seed(seed)
    other = declared(loss)
    disclosed = update.batch_size if labels is None and batch_size is None else batch_size
    loss_name = loss if isinstance(loss, str) or loss is None else loss.name
    knowledge = Knowledge(
        labels=labels,
        batch_size=disclosed,
        loss=loss_name,
        training=update.training,
        carried=update.carried,
        public=public,
    )
    start = time.perf_counter()
    head = Head.of(model, update, device)
    separator = cast("Callable[..., Leak]", SEPARATORS[method])
    if other is not None and not takes(separator, "loss"):
        raise UnsumError(
            f"The attack {method!r} assumes cross-entropy; use 'exact' for the loss {other.name!r}."
        )
    check_options(method, separator, options)
    at_hand = {"loss": other, "progress": progress, "model": model, "update": update}
    options |= {name: value for name, value in at_hand.items() if takes(separator, name)}
    default = DEFAULT_LIMIT if steps_of(separator) is None else math.inf
    with limited_to(time_limit, progress, default=default) as deadline, sharing():
        leak = separator(head, knowledge, seed=seed, **options)
    if not bool(leak.features.isfinite().all()):
        raise UnsumError(
            f"The attack {method!r} divided by zero on this gradient; use 'auto' or 'exact'."
        )
    if deadline.cut:  # a search that was cut short vouches for nothing
        leak = replace(leak, exact=False, notes=[deadline.sentence, *leak.notes])
    leak = withhold(leak, doubt_network(head, method, leak.loss))
    if update.carried is not None:
        leak = replace(leak, notes=[*leak.notes, update.carried.note])
    used = leak.knowledge  # a method says which photos and public inputs it used
    granted = replace(knowledge, auxiliary_photos=used.auxiliary_photos, public=used.public)
    return replace(leak, knowledge=granted, seconds=time.perf_counter() - start)
