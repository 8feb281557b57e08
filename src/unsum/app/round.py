"""One round, played and scored: what a page is told, answer by answer."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unsum.app.bounds import Ceilings, Narrowing
from unsum.app.order import Order
from unsum.app.shelf import shown
from unsum.attack.chain import run_attack
from unsum.attack.options import AUTO, AttackOptions
from unsum.audit.result import finite
from unsum.audit.round import (
    Compared,
    Sent,
    as_trained,
    attacked,
    compare_with_truth,
    send,
    unanswered,
)
from unsum.audit.sweep.bench import mean_of
from unsum.audit.verdict import Sizes, judge
from unsum.client.capture import in_mode
from unsum.errors import UnsumError, needed
from unsum.leak import Attempt, Leak
from unsum.models.load import LoadedModel
from unsum.running.deadline import DEFAULT_LIMIT
from unsum.score import SampleScore
from unsum.separate import separate

Answer = dict[str, Any]
# one division instead of a search: half a second where noise keeps the whole attack busy for many
FIRST_LOOK = "fgla"
_SOON = 10.0  # seconds: what takes longer to be certain deserves a first look
# the same draw of noise for every stop of a slider, so that a change of the picture is a change of
# strength
_SEED = 0


def play(
    loaded: LoadedModel, order: Order, device: torch.device, ceilings: Ceilings | None = None
) -> Generator[Answer, None, None]:
    """Client, attack and score, then the ceiling, narrower and narrower.

    Under a defense, a first look and a first ceiling come before the answer of the whole attack.
    """
    start = time.perf_counter()
    narrowing = (ceilings or Ceilings()).of(loaded.model, order, device, _SEED)
    # Its own copy: a round that is interrupted may leave BatchNorm's statistics as they were
    # halfway.
    model, own = copy.deepcopy(loaded.model), order.truth
    yield _stage("The client computes its update")
    defenses = [] if order.defense is None else [order.defense]
    sent = send(
        model,
        own.images.to(device),
        own.targets.to(device),
        defenses,
        train=order.train,
        seed=_SEED,
    )
    order = replace(order, truth=as_trained(own, sent))
    blended = not torch.equal(order.truth.images, own.images)
    whole = AttackOptions(device=device, seed=_SEED, time_limit=DEFAULT_LIMIT)

    compared: Compared | None = None

    def scored(leak: Leak, final: bool) -> Answer:
        nonlocal compared
        compared = compare_with_truth(sent, leak)
        content = _result(order, compared, blended) | _bounded(order, compared, narrowing)
        return content | {"kind": "result", "final": final, "seconds": time.perf_counter() - start}

    with in_mode(model, order.train):  # how clients train is the server's own protocol
        if defenses and not _is_certain(sent, device):
            yield _stage("The server takes a first look")
            # no bias gradient, or none of the head: the whole attack says what that means
            with suppress(UnsumError):
                yield scored(
                    run_attack(model, sent.update, replace(whole, method=FIRST_LOOK)), final=False
                )
            yield _stage("The client is played in two worlds", quiet=True)
            narrowing.further()
            if compared is not None:
                yield _bounded(order, compared, narrowing) | {"kind": "bound", "final": False}
        yield _stage("The server runs the whole attack")
        try:
            leak = attacked(model, sent.update, whole)
        except UnsumError as reason:
            # it cannot even begin: an answer, too, and nobody knows what leaks then
            leak = unanswered(model, AUTO, [Attempt(AUTO, refused=str(reason))], str(reason))
    yield scored(leak, final=True)
    compared = needed(compared, "The comparison with the truth")
    for last in narrowing.narrowed():
        yield _bounded(order, compared, narrowing) | {"kind": "bound", "final": last}


def _is_certain(sent: Sent, device: torch.device) -> bool:
    """Whether the whole attack will be done at once: then a first look would only make the page
    wait for its pictures."""
    try:
        return separate(sent.model, sent.update, device=device, seed=_SEED, time_limit=_SOON).exact
    except UnsumError:
        return False


def _stage(sentence: str, *, quiet: bool = False) -> Answer:
    """`quiet`: what a search inside says of itself is not shown."""
    return {"kind": "stage", "sentence": sentence, "quiet": quiet}


def _bounded(order: Order, compared: Compared, narrowing: Narrowing) -> Answer:
    """The verdict, from what was found and the ceiling as far as it is known."""
    leak, bound = compared.leak, narrowing.bound
    besides = compared.labels, compared.occurred, bound
    sizes = Sizes.of(leak, order.truth)
    verdict = judge(leak, compared.samples, compared.shares, compared.undecided, sizes, *besides)
    known = None
    if bound is not None:
        limits = {"samples": bound.samples.tolist(), "lower": bound.lower.tolist()}
        known = limits | {"highest": bound.highest, "pairs": bound.pairs}
    told = {"verdict": verdict.to_dict(), "ceiling": known, "unbounded": narrowing.absent}
    return finite(told)


def _result(order: Order, compared: Compared, blended: bool) -> Answer:
    leak, rows, leaked = compared.leak, compared.samples, compared.leakages
    known = [value for value in leaked if not math.isnan(value)]
    own = [share.sample for share in compared.shares]
    samples = [_sample(order, compared, row, i) for i, row in enumerate(rows)]
    samples = [row | {"found": value} for row, value in zip(samples, own, strict=True)]
    if blended:  # the page has the photos themselves, but these are not what came back
        samples = [
            row | {"blend": shown(image)}
            for row, image in zip(samples, order.truth.images, strict=True)
        ]
    return finite(
        {
            "certificate": leak.exact,
            "predicted_error": leak.predicted_error,
            "found": leak.number_of(),
            "method": leak.method,
            "notes": leak.notes,
            "granted": leak.knowledge.granted(),
            "samples": samples,
            "mean_leakage": mean_of(known),
            "worst_leakage": max(known, default=math.nan),
        }
    )


def _sample(order: Order, compared: Compared, row: SampleScore, i: int) -> Answer:
    leak, names = compared.leak, order.truth.class_names
    recovered: Tensor | None = (
        None if row.found is None or leak.images is None else leak.images[row.found]
    )
    truth, target = order.truth, order.truth.targets[i]
    return {
        "id": order.keys[i],
        "title": truth.titles[i],
        # of soft ones the largest
        "label": names[int(target if target.ndim == 0 else target.argmax())],
        "found_label": _found_label(compared, row, names),
        "label_correct": row.label_correct == 1.0,
        "came_back": row.found is not None,
        "feature_error": row.feature_error,
        "psnr": row.psnr if recovered is not None else None,
        "ssim": row.ssim if recovered is not None else None,
        "leakage": compared.leakages[i],
        "picture": shown(recovered),
    }


def _found_label(compared: Compared, row: SampleScore, names: list[str]) -> str | None:
    """Of the attack whose labels are counted, which need not be the one whose picture is shown."""
    if compared.labels is not None:
        return (
            None
            if row.label_from is None
            else names[int(compared.labels.rows[row.label_from].argmax())]
        )
    return None if row.found is None else names[int(compared.leak.labels[row.found])]
