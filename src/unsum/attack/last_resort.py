"""Gradient matching for small pictures, before an update is called safe: what no equation reads, a
search may draw.

It takes the layers' whole gradient and labels: those that other attacks found and, where whoever
plays the client grants them, the client's own, because an attacker may know them or try them all.
Each set is tried with every pixel free (`ig`, without the entries that are zero, because defenses
remove them) and with a sixteenth of them (`rog`), which noise, signs and few bits still determine.
Dropout is off: its masks are not known. That a search finds nothing proves nothing. A few hundred
steps show whether a picture comes at all; `unsum audit --attack ig` takes as many as it is given.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from unsum.attack.any_network import (
    MOST_SAMPLES,
    MOST_SIDE,
    PROVES_NOTHING,
    UNDERIVED,
    match_any_network,
    not_matched,
)
from unsum.attack.options import AUTO, AttackOptions
from unsum.errors import UnsumError, needed
from unsum.gradients import quiet, with_features
from unsum.head import find_head
from unsum.leak import Attempt, Leak
from unsum.losses import BinaryCrossEntropy, declared
from unsum.match import match
from unsum.match.protocol import Form, Protocol
from unsum.models.language import is_language_model
from unsum.network.loss_function import function_of
from unsum.running.deadline import time_limit
from unsum.running.progress import SILENT, Progress
from unsum.update import Update

METHOD = "ig"
# Method → options. Chosen by: measurement (benchmarks/greens.py); most of what comes has come by
# then, in one second each for two pictures of 16² on one core
SETTINGS: dict[str, dict[str, Any]] = {
    METHOD: {"steps": 400, "masked": True},
    "rog": {"steps": 200},
}
# [s] for all tries together. Chosen by: arbitrary budget, three times what tries at 16² take
SECONDS = 20.0
_SETS = 2  # [1] sets of labels that others found. Chosen by: arbitrary budget
_OWN_LABELS = (
    "The client's labels were granted to gradient matching: an attacker may know them, or try them "
    "all."
)
_LEAST = 1.0  # [s] left that are worth a start. Chosen by: arbitrary budget


def match_as_last_resort(
    model: nn.Module,
    update: Update,
    leak: Leak,
    options: AttackOptions,
    shape: tuple[int, ...],
    progress: Progress = SILENT,
    *,
    granted: Tensor | None = None,
) -> list[Attempt]:
    """What matching pictures of a `shape` got, or why it was not tried; empty where the samples are
    no pictures.

    `granted` are the client's own labels, for a try after those with labels that were found, unless
    these are the same.
    """
    if options.method != AUTO or len(shape) != 3 or is_language_model(model):
        return []
    if options.other_loss:
        return _under_another_loss(model, update, leak, options, shape, progress)
    left = (
        SECONDS if options.time_limit is None else min(SECONDS, options.time_limit - leak.seconds)
    )
    sets = _label_sets(leak, options, granted)
    reason = _obstacle(update, options, shape, sets, left)
    if reason:
        return [not_matched(reason)]
    progress.say("Matching gradients")
    runs = [(method, labels, own) for labels, own in sets for method in SETTINGS]
    start, attempts = time.perf_counter(), list[Attempt]()
    for number, (method, labels, own) in enumerate(runs, 1):
        remaining = (left - (time.perf_counter() - start)) / (len(runs) - number + 1)
        knowledge = (
            replace(leak.knowledge, labels=labels, batch_size=None) if own else leak.knowledge
        )
        name = f"{method}, labels granted" if own else method
        try:
            # Attention's fast kernels on a CPU have no second derivative.
            with (
                time_limit(max(remaining, _LEAST)) as deadline,
                sdpa_kernel(SDPBackend.MATH),
                _without_dropout(model),
            ):
                found = match(
                    model,
                    update,
                    method,
                    labels=labels,
                    image_size=(shape[0], shape[1], shape[2]),
                    device=options.device,
                    seed=options.seed,
                    progress=progress,
                    **SETTINGS[method],
                )
        except UnsumError as error:
            if method not in SETTINGS:  # the others may not need what this one misses
                attempts.append(Attempt(name, refused=str(error), at_head=False))
                continue
            return [*attempts, not_matched(str(error).rstrip("."))]
        except RuntimeError as error:
            if UNDERIVED not in str(error):
                raise
            return [
                *attempts,
                not_matched("PyTorch lacks a second derivative of one of the model's operations"),
            ]
        notes = [_OWN_LABELS, *found.notes] if own else found.notes
        # labels that were found are not granted
        found = replace(found, knowledge=knowledge, notes=notes)
        blind = deadline.over if deadline.cut else PROVES_NOTHING
        attempts.append(Attempt(name, found, blind=blind, at_head=False))
    return attempts


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    dropping = [
        one
        for one in model.modules()
        if isinstance(one, nn.modules.dropout._DropoutNd) and one.training
    ]
    try:
        for module in dropping:
            module.eval()
        yield
    finally:
        for module in dropping:
            module.train()


def _under_another_loss(
    model: nn.Module,
    update: Update,
    leak: Leak,
    options: AttackOptions,
    shape: tuple[int, ...],
    progress: Progress,
) -> list[Attempt]:
    """Targets are numbers then, which no label rule finds: they are estimated along with the
    pictures."""
    loss = declared(options.loss)
    function = None if loss is None else function_of(loss)
    if function is None:
        return [not_matched(f"it does not know the loss {options.loss!r}")]
    form: Form = "shares" if isinstance(loss, BinaryCrossEntropy) else "numbers"
    target = (leak.targets.shape[1],)
    protocol = Protocol(function, (shape[0], shape[1], shape[2]), target, form)
    attempts = match_any_network(
        model, update, protocol, options, spent=leak.seconds, progress=progress
    )
    return [
        one if one.leak is None else replace(one, leak=_at_head(model, one.leak))
        for one in attempts
    ]


def _at_head(model: nn.Module, leak: Leak) -> Leak:
    """The leak with what its pictures are at the head."""
    images = needed(leak.images, "A picture")
    with quiet(model, ()), torch.no_grad():
        features, logits = with_features(model, find_head(model)[1], images)
    return replace(leak, features=features.double(), logits=logits.double())


def _label_sets(
    leak: Leak, options: AttackOptions, granted: Tensor | None
) -> list[tuple[Tensor, bool]]:
    """Sets of labels with whether they are the client's own: what the options grant alone; else
    those of rules and answers, of as many samples as there are known to be, and what the audit
    grants."""
    if options.labels is not None:
        return [(options.labels, True)]
    rules = [attempt.labels for attempt in leak.tried if attempt.labels is not None]
    answers = [attempt.leak.labels for attempt in leak.tried if attempt.leak is not None]
    found: dict[tuple[int, ...], Tensor] = {}
    for labels in [
        *([leak.named] if leak.named is not None else []),
        leak.labels,
        *rules,
        *answers,
    ]:
        if 0 < len(labels) <= MOST_SAMPLES and options.batch_size in (None, len(labels)):
            ordered = labels.sort().values
            found.setdefault(tuple(ordered.tolist()), ordered)
    sets = [(labels, False) for labels in list(found.values())[:_SETS]]
    if granted is None or len(granted) > MOST_SAMPLES:
        return sets
    own = granted if granted.ndim > 1 else granted.sort().values
    same = granted.ndim == 1 and any(labels.tolist() == own.tolist() for labels, _ in sets)
    return sets if same else [*sets[:1], (own, True), *sets[1:]]


def _obstacle(
    update: Update,
    options: AttackOptions,
    shape: tuple[int, ...],
    sets: list[tuple[Tensor, bool]],
    left: float,
) -> str:
    """Why matching promises nothing here; empty where it may."""
    side = max(shape[1:])
    if side > MOST_SIDE:
        return f"pictures of {side}² take long (`--attack {METHOD}` tries them)"
    if update.training is not None and update.training.several_steps:
        return "it takes one step for granted"
    if (options.batch_size or 0) > MOST_SAMPLES:
        return f"{options.batch_size} pictures take long (`--attack {METHOD}` tries them)"
    if not sets:
        return f"no attack found labels of {MOST_SAMPLES} samples or fewer"
    return f"of the time limit {max(left, 0):.0f} s were left" if left < _LEAST else ""
