"""Gradient matching for small pictures, before an update is called safe: what no equation reads, a search may draw.

It takes the labels that are granted or that other attacks found, and the layers' whole gradient. Entries that are zero are left
out of the comparison, because defenses remove them. That it finds nothing proves nothing. A few hundred steps show whether a
picture comes at all; `unsum audit --attack ig` takes as many as it is given.
"""

from __future__ import annotations

import time

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from unsum.attack.options import AUTO, AttackOptions
from unsum.deadline import time_limit
from unsum.errors import UnsumError
from unsum.leak import Attempt, Leak
from unsum.match import match
from unsum.models.language import is_language_model
from unsum.progress import SILENT, Progress
from unsum.update import Update

METHOD = "ig"
STEPS = 400  # two seconds for two pictures of 16² on one core, where most of what comes has come
SECONDS = 10.0  # for all tries together; the rest of such an audit takes about as long
MOST_SIDE, MOST_SAMPLES = 64, 4  # beyond them so few steps draw nothing
_TRIES = 2  # sets of labels, where none are granted
_UNDERIVED = "is not implemented"  # how PyTorch says that a derivative is missing
_LEAST = 1.0  # seconds left that are worth a start
PROVES_NOTHING = "a search that finds no picture proves nothing"


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
            if _UNDERIVED not in str(error):
                raise
            why = "Gradient matching was not tried: PyTorch lacks a second derivative of one of the model's operations."
            return [*attempts, Attempt(METHOD, refused=why, at_head=False)]
        blind = deadline.over if deadline.cut else PROVES_NOTHING
        attempts.append(Attempt(METHOD, found, blind=blind, at_head=False))
    return attempts


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
    if options.other_loss:
        return "it assumes cross-entropy"
    if update.training is not None and update.training.several_steps:
        return "it takes one step for granted"
    if (options.batch_size or 0) > MOST_SAMPLES:
        return f"{options.batch_size} pictures take long (`--attack {METHOD}` tries them)"
    if not sets:
        return f"no attack found labels of {MOST_SAMPLES} samples or fewer"
    return f"of the time limit {max(left, 0):.0f} s were left" if left < _LEAST else ""
