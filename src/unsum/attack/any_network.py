"""Gradient matching where nothing starts at a linear head, or where the loss is no cross-entropy.

The first try has the client's targets, where whoever plays the client grants them: it reads the
most. Then they are estimated along with the pictures, for one sample and for two where nobody says
how many there are. That it finds nothing proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from unsum.attack.options import AttackOptions
from unsum.errors import UnsumError
from unsum.leak import Attempt, Leak
from unsum.match.any_network import METHOD, match_any
from unsum.match.protocol import Protocol
from unsum.running.deadline import DEFAULT_LIMIT, time_limit
from unsum.running.progress import SILENT, Progress
from unsum.showing.wording import sample_count
from unsum.update import Update

MOST_SIDE, MOST_SAMPLES = 64, 4  # beyond them so few steps draw nothing
PROVES_NOTHING = "a search that finds no picture proves nothing"
LOSS_UNKNOWN = (
    "the loss is not known; play the client: unsum.audit(model, (inputs, targets), "
    "client=unsum.ClientTraining(loss=function))"
)
NO_PICTURES = "it draws pictures with values from 0 to 1, in tensors of inputs and targets"
_SIZES = (1, 2)  # of the batch, where nobody says
_LEAST = 1.0  # seconds left that are worth a start
UNDERIVED = "is not implemented"  # how PyTorch says that a derivative is missing
_REFUSED = "Gradient matching was not tried: "


def not_matched(reason: str) -> Attempt:
    return Attempt(METHOD, refused=f"{_REFUSED}{reason}.", at_head=False)


def match_any_network(
    model: nn.Module,
    update: Update,
    protocol: Protocol,
    options: AttackOptions,
    *,
    spent: float = 0.0,
    granted: Tensor | None = None,
    progress: Progress = SILENT,
) -> list[Attempt]:
    """What matching got, try by try, in the time that is left; `granted` are targets for the first
    try."""
    known = options.batch_size or update.batch_size
    reason = _obstacle(update, protocol, max(known or 0, 0 if granted is None else len(granted)))
    limit = DEFAULT_LIMIT if options.time_limit is None else options.time_limit
    start, left = time.perf_counter(), limit - spent
    if reason or left < _LEAST:
        return [not_matched(reason or f"of the time limit {max(left, 0):.0f} s were left")]
    progress.say("Matching gradients")
    find = partial(match_any, model, update, protocol, seed=options.seed, progress=progress)
    sizes = _SIZES if known is None else (known,)
    tries: list[tuple[str, Callable[[], Leak]]] = []
    if granted is not None:
        name = f"{METHOD}, targets granted"
        tries.append((name, partial(find, batch_size=len(granted), targets=granted)))
    for size in sizes:
        name = METHOD if known is not None else f"{METHOD}, for {sample_count(size)}"
        tries.append((name, partial(find, batch_size=size)))
    attempts = []
    for number, (name, matched) in enumerate(tries):
        seconds = (left - (time.perf_counter() - start)) / (len(tries) - number)
        attempts.append(_tried(name, matched, max(seconds, _LEAST)))
    return attempts


def _tried(name: str, matched: Callable[[], Leak], seconds: float) -> Attempt:
    try:
        # Attention's fast kernels on a CPU have no second derivative.
        with time_limit(seconds) as deadline, sdpa_kernel(SDPBackend.MATH):
            found = matched()
    except UnsumError as error:
        return Attempt(name, refused=f"{_REFUSED}{str(error).rstrip('.')}.", at_head=False)
    except RuntimeError as error:
        if UNDERIVED not in str(error):
            raise
        why = "PyTorch lacks a second derivative of one of the model's operations."
        return Attempt(name, refused=f"{_REFUSED}{why}", at_head=False)
    return Attempt(
        name, found, blind=deadline.over if deadline.cut else PROVES_NOTHING, at_head=False
    )


def _obstacle(update: Update, protocol: Protocol, samples: int) -> str:
    """Why matching promises nothing here; empty where it may."""
    side = max(protocol.shape[1:])
    if side > MOST_SIDE:
        return f"pictures of {side}² take long"
    if update.training is not None and update.training.several_steps:
        return "it takes one step for granted"
    return f"{samples} pictures take long" if samples > MOST_SAMPLES else ""
