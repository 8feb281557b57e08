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

from unsum.app.order import Order
from unsum.app.shelf import shown
from unsum.attack.chain import run_attack
from unsum.attack.options import AUTO, AttackOptions
from unsum.audit.result import finite
from unsum.audit.round import Compared, Sent, as_trained, attacked, compare_with_truth, send, unanswered
from unsum.audit.sweep.bench import mean_of
from unsum.audit.verdict import judge
from unsum.client.capture import in_mode
from unsum.deadline import DEFAULT_LIMIT
from unsum.errors import UnsumError
from unsum.leak import Attempt, Leak
from unsum.models.load import LoadedModel
from unsum.score import SampleScore
from unsum.separate import separate

Answer = dict[str, Any]
FIRST_LOOK = "fgla"  # one division instead of a search: half a second where noise keeps the whole attack busy for many
_SOON = 10.0  # seconds: what takes longer to be certain deserves a first look
_SEED = 0  # the same draw of noise for every stop of a slider, so that a change of the picture is a change of strength


def play(loaded: LoadedModel, order: Order, device: torch.device) -> Generator[Answer, None, None]:
    """Client, attack and score. Under a defense, a first look comes before the answer of the whole attack."""
    start = time.perf_counter()
    # Its own copy: a round that is interrupted may leave BatchNorm's statistics as they were halfway.
    model, own = copy.deepcopy(loaded.model), order.truth
    yield _stage("The client computes its update")
    defenses = [] if order.defense is None else [order.defense]
    sent = send(model, own.images.to(device), own.targets.to(device), defenses, train=order.train, seed=_SEED)
    order = replace(order, truth=as_trained(own, sent))
    blended = not torch.equal(order.truth.images, own.images)
    whole = AttackOptions(device=device, seed=_SEED, time_limit=DEFAULT_LIMIT)

    def scored(leak: Leak, final: bool) -> Answer:
        content = _result(order, compare_with_truth(sent, leak), blended)
        return content | {"final": final, "seconds": time.perf_counter() - start}

    with in_mode(model, order.train):  # how clients train is the server's own protocol
        if defenses and not _is_certain(sent, device):
            yield _stage("The server takes a first look")
            with suppress(UnsumError):  # no bias gradient, or none of the head: the whole attack says what that means
                yield scored(run_attack(model, sent.update, replace(whole, method=FIRST_LOOK)), final=False)
        yield _stage("The server runs the whole attack")
        try:
            leak = attacked(model, sent.update, whole)
        except UnsumError as reason:  # it cannot even begin: an answer, too, and nobody knows what leaks then
            leak = unanswered(model, AUTO, [Attempt(AUTO, refused=str(reason))], str(reason))
    yield scored(leak, final=True)


def _is_certain(sent: Sent, device: torch.device) -> bool:
    """Whether the whole attack will be done at once: then a first look would only make the page wait for its pictures."""
    try:
        return separate(sent.model, sent.update, device=device, seed=_SEED, time_limit=_SOON).exact
    except UnsumError:
        return False


def _stage(sentence: str) -> Answer:
    return {"kind": "stage", "sentence": sentence}


def _result(order: Order, compared: Compared, blended: bool) -> Answer:
    leak, rows, leaked = compared.leak, compared.samples, compared.leakages
    known = [value for value in leaked if not math.isnan(value)]
    samples = [_sample(order, leak, row, i, leaked[i]) for i, row in enumerate(rows)]
    if blended:  # the page has the photos themselves, but these are not what came back
        samples = [row | {"blend": shown(image)} for row, image in zip(samples, order.truth.images, strict=True)]
    return finite(
        {
            "kind": "result",
            "verdict": judge(leak, rows, leaked, compared.undecided).to_dict(),
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


def _sample(order: Order, leak: Leak, row: SampleScore, i: int, leaked: float) -> Answer:
    recovered: Tensor | None = None if row.found is None or leak.images is None else leak.images[row.found]
    truth, target = order.truth, order.truth.targets[i]
    return {
        "id": order.keys[i],
        "title": truth.titles[i],
        "label": truth.class_names[int(target if target.ndim == 0 else target.argmax())],  # of soft ones the largest
        "found_label": None if row.found is None else truth.class_names[int(leak.labels[row.found])],
        "label_correct": row.label_correct == 1.0,
        "feature_error": row.feature_error,
        "psnr": row.psnr if recovered is not None else None,
        "ssim": row.ssim if recovered is not None else None,
        "leakage": leaked,
        "picture": shown(recovered),
    }
