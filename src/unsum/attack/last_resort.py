"""Gradient matching for small pictures, before an update is called safe: what no equation reads, a search may draw.

It takes the labels that are granted or that other attacks found, and the layers' whole gradient. Entries that are zero are left
out of the comparison, because defenses remove them. That it finds nothing proves nothing. A few hundred steps show whether a
picture comes at all; `unsum audit --attack ig` takes as many as it is given.
"""

from __future__ import annotations

import time
from dataclasses import replace

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
from unsum.deadline import time_limit
from unsum.errors import UnsumError, needed
from unsum.gradients import quiet, with_features
from unsum.head import find_head
from unsum.leak import Attempt, Leak
from unsum.losses import BinaryCrossEntropy, declared
from unsum.match import match
from unsum.match.protocol import Form, Protocol
from unsum.models.language import is_language_model
from unsum.network.loss_function import function_of
from unsum.progress import SILENT, Progress
from unsum.update import Update

METHOD = "ig"
STEPS = 400  # two seconds for two pictures of 16² on one core, where most of what comes has come
SECONDS = 10.0  # for all tries together; the rest of such an audit takes about as long
_TRIES = 2  # sets of labels, where none are granted
_LEAST = 1.0  # seconds left that are worth a start


def match_as_last_resort(
    model: nn.Module,
    update: Update,
    leak: Leak,
    options: AttackOptions,
    shape: tuple[int, ...],
    progress: Progress = SILENT,
) -> list[Attempt]:
    """What matching pictures of a `shape` got, or why it was not tried; empty where the samples are no pictures."""
    if options.method != AUTO or len(shape) != 3 or is_language_model(model):
        return []
    if options.other_loss:
        return _under_another_loss(model, update, leak, options, shape, progress)
    left = SECONDS if options.time_limit is None else min(SECONDS, options.time_limit - leak.seconds)
    sets = _label_sets(leak, options)
    reason = _obstacle(update, options, shape, sets, left)
    if reason:
        return [Attempt(METHOD, refused=f"Gradient matching was not tried: {reason}.", at_head=False)]
    progress.say("Matching gradients")
    start, attempts = time.perf_counter(), list[Attempt]()
    for number, labels in enumerate(sets, 1):
        remaining = (left - (time.perf_counter() - start)) / (len(sets) - number + 1)
        try:
            # Attention's fast kernels on a CPU have no second derivative.
            with time_limit(max(remaining, _LEAST)) as deadline, sdpa_kernel(SDPBackend.MATH):
                found = match(
                    model,
                    update,
                    METHOD,
                    labels=labels,
                    image_size=(shape[0], shape[1], shape[2]),
                    device=options.device,
                    seed=options.seed,
                    progress=progress,
                    steps=STEPS,
                    masked=True,
                )
        except UnsumError as error:
            return [*attempts, Attempt(METHOD, refused=f"Gradient matching was not tried: {error}", at_head=False)]
        except RuntimeError as error:
            if UNDERIVED not in str(error):
                raise
            why = "Gradient matching was not tried: PyTorch lacks a second derivative of one of the model's operations."
            return [*attempts, Attempt(METHOD, refused=why, at_head=False)]
        blind = deadline.over if deadline.cut else PROVES_NOTHING
        attempts.append(Attempt(METHOD, found, blind=blind, at_head=False))
    return attempts


def _under_another_loss(
    model: nn.Module, update: Update, leak: Leak, options: AttackOptions, shape: tuple[int, ...], progress: Progress
) -> list[Attempt]:
    """Targets are numbers then, which no label rule finds: they are estimated along with the pictures."""
    loss = declared(options.loss)
    function = None if loss is None else function_of(loss)
    if function is None:
        return [not_matched(f"it does not know the loss {options.loss!r}")]
    form: Form = "shares" if isinstance(loss, BinaryCrossEntropy) else "numbers"
    target = (leak.targets.shape[1],)
    protocol = Protocol(function, (shape[0], shape[1], shape[2]), target, form)
    attempts = match_any_network(model, update, protocol, options, spent=leak.seconds, progress=progress)
    return [one if one.leak is None else replace(one, leak=_at_head(model, one.leak)) for one in attempts]


def _at_head(model: nn.Module, leak: Leak) -> Leak:
    """The leak with what its pictures are at the head."""
    images = needed(leak.images, "A picture")
    with quiet(model, ()), torch.no_grad():
        features, logits = with_features(model, find_head(model)[1], images)
    return replace(leak, features=features.double(), logits=logits.double())


def _label_sets(leak: Leak, options: AttackOptions) -> list[Tensor]:
    """The labels that are granted; else those of rules and answers, of as many samples as there are known to be."""
    if options.labels is not None:
        return [options.labels]
    rules = [attempt.labels for attempt in leak.tried if attempt.labels is not None]
    answers = [attempt.leak.labels for attempt in leak.tried if attempt.leak is not None]
    found: dict[tuple[int, ...], Tensor] = {}
    for labels in [*([leak.named] if leak.named is not None else []), leak.labels, *rules, *answers]:
        if 0 < len(labels) <= MOST_SAMPLES and options.batch_size in (None, len(labels)):
            ordered = labels.sort().values
            found.setdefault(tuple(ordered.tolist()), ordered)
    return list(found.values())[:_TRIES]


def _obstacle(update: Update, options: AttackOptions, shape: tuple[int, ...], sets: list[Tensor], left: float) -> str:
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
