"""Attacks that anyone would try, for `greens.py`: each reads an update in a few lines, or by one
call of one method.

An attack is given the model, the update and what the audit was granted; matching is granted the
labels besides. Its answer is scored here, in the unit of the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum.audit import Audit, ceiling_words
from unsum.audit.leakage import ALIKE, DEFAULT_LEVEL, WHOLE
from unsum.audit.round import Sent, shares_of
from unsum.data import embedded_batch
from unsum.errors import UnsumError
from unsum.gradients import inputs_of
from unsum.head import Head, collect_features
from unsum.knowledge import Knowledge
from unsum.labels import LABEL_RULES
from unsum.leak import Leak
from unsum.match import match
from unsum.running.deadline import time_limit
from unsum.score.labels import LabelsRead
from unsum.score.pictures import picture_cosine

# [1] share of a label set or of an embedding's rows, beyond a guess, that contradicts a report
# without it. Chosen by: what the report itself calls given away
MOST = 0.5
# [1] leakage of features from which a method contradicts. Chosen by: the gate's level and half as
# much, so that no noise decides
CLEARLY = 1.5 * DEFAULT_LEVEL
# [s] for one method. Chosen by: arbitrary budget, five times what most take
SECONDS = 5.0
# [deviations] of the bulk, from which a row of an embedding is taken for one that was asked for.
# Chosen by: arbitrary, no normal number of 10 000 lies there
FAR = 5.0
# Of gradient matching, with the labels granted. Chosen by: what a person who has three tries would
# type
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ig, masked": ("ig", {"steps": 400, "masked": True}),
    "ig, slowly": ("ig", {"steps": 800, "total_variation": 1e-3}),
    "rog": ("rog", {"steps": 300, "factor": 2}),
}
ALONE = (
    "exact",
    "adaptive",
    "fgla",
    "phong",
    "uneven",
    "cocktail",
    "rgla-newton",
)  # separators that are given the update
# and those that are given labels of a rule
WITH_LABELS = ("exact", "adaptive", "fgla", "crowded", "rgla-newton")
_OWN = ("row sums", "photo template")  # label rules of this file


@dataclass(frozen=True, eq=False)
class Target:
    """What a client sent, beside the truth that answers are scored against."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    classes: int
    size_known: bool
    seed: int
    seen: dict[tuple[object, ...], Any] = field(
        default_factory=dict
    )  # labels and shares that were found, which many rules share

    def once(self, compute: Callable[[], Any], *what: object) -> Any:
        if what not in self.seen:
            self.seen[what] = compute()
        return self.seen[what]

    @property
    def size(self) -> int | None:
        return len(self.labels) if self.size_known else None

    def named(self, found: Tensor) -> float:
        """The share of the labels that `found` (n,) names, beyond a guess; 0 where they do not
        count as given away."""
        rows, true = (nn.functional.one_hot(y, self.classes).double() for y in (found, self.labels))
        read = LabelsRead.of(rows, true)
        return read.share if read.given_away else 0.0

    def share(self, update: unsum.Update, leak: Leak) -> float:
        """The most that an answer has of one sample."""
        sent = Sent(self.model, self.images, self.labels, update, train=True, seed=self.seed)
        return max(
            (share.most for share in shares_of(sent, leak) if share.most == share.most), default=0.0
        )


@dataclass(frozen=True)
class Simple:
    """An attack by name; from `least` on, what it reads contradicts."""

    name: str
    least: float
    read: Callable[[Target, unsum.Update], float]


def attacks(target: Target, audit: Audit, *, samples: bool) -> Iterator[Simple]:
    """Those that could contradict this audit; `samples`: also of what its gate says, that no sample
    leaks."""
    # that one wants labeled photos
    rules = [*(entry.name for entry in LABEL_RULES if entry.name != "llg+"), *_OWN]
    said = audit.bound is not None and audit.verdict.level == "protected"
    if audit.labels is None or not (
        audit.labels.given_away or (said and ceiling_words.labels_open(audit.bound))
    ):
        yield from (Simple(f"labels by {rule}", MOST, partial(by_rule, rule)) for rule in rules)
    if not any(named.given_away for named in audit.occurred):
        yield Simple("embedding rows", MOST, by_embeddings)
    if not samples:
        return
    yield Simple("ratio", WHOLE, by_ratio)
    yield from (Simple(method, CLEARLY, partial(by_method, method)) for method in ALONE)
    for rule in rules:
        yield Simple(f"rows, labels by {rule}", CLEARLY, partial(by_label_rows, rule))
        for method in WITH_LABELS:
            yield Simple(
                f"{method}, labels by {rule}", CLEARLY, partial(by_method, method, rule=rule)
            )
    if target.images.ndim == 4 and target.images.shape[-1] == 16 and len(target.images) <= 2:
        yield from (Simple(name, ALIKE, partial(by_matching, name)) for name in SETTINGS)


def labels_by(rule: str, target: Target, update: unsum.Update) -> Tensor:
    """(n,) as a label rule, or one of this file, names them; empty where it refuses."""
    found: Tensor = target.once(lambda: _labels(rule, target, update), "labels", rule, id(update))
    return found


def _labels(rule: str, target: Target, update: unsum.Update) -> Tensor:
    if rule not in _OWN:
        with suppress(UnsumError), time_limit(SECONDS):
            return unsum.labels(
                target.model, update, rule, batch_size=target.size, seed=target.seed
            )
        return torch.zeros(0, dtype=torch.long)
    rows = head_rows(target, update)
    if rows is None:
        return torch.zeros(0, dtype=torch.long)
    scores = rows.sum(1) if rule == "row sums" else rows @ typical_features(target).double()
    return (scores < 0).nonzero()[:, 0] if target.size is None else scores.argsort()[: target.size]


def head_rows(target: Target, update: unsum.Update) -> Tensor | None:
    """(C, H) the head's gradient; None where it was not sent."""
    try:
        return Head.of(target.model, update).grad_W.double()
    except UnsumError:
        return None


def typical_features(target: Target) -> Tensor:
    """(H,) the mean feature of public photos, which are not the client's; of random codes where
    samples are no photos."""
    torch.manual_seed(target.seed + 7)
    if target.images.ndim == 4:
        public = embedded_batch(16, image_size=target.images.shape[-1]).images
        own = torch.cdist(public.flatten(1), target.images.flatten(1)).amin(1) < 1e-6
        public = public[~own]
        public = public if len(public) > 1 else torch.rand(16, *target.images.shape[1:])
    else:
        public = target.images[
            torch.randint(len(target.images), (64, 1)), torch.arange(target.images.shape[1])
        ]
        public = torch.stack([column[torch.randperm(64)] for column in public.T], 1)
    mean: Tensor = collect_features(target.model, public).mean(0)
    return mean


def by_rule(rule: str, target: Target, update: unsum.Update) -> float:
    return target.named(labels_by(rule, target, update))


def by_method(method: str, target: Target, update: unsum.Update, *, rule: str = "") -> float:
    """A separator by itself, with the labels of a rule where one is named."""
    labels = labels_by(rule, target, update) if rule else None
    if labels is not None and not len(labels):
        return 0.0
    given: dict[str, Any] = {"batch_size": target.size} if labels is None else {"labels": labels}

    def share() -> float:
        try:
            with time_limit(SECONDS):
                return target.share(
                    update, unsum.separate(target.model, update, method, seed=target.seed, **given)
                )
        except (UnsumError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            return 0.0

    return float(
        target.once(share, method, None if labels is None else tuple(labels.tolist()), id(update))
    )


def by_label_rows(rule: str, target: Target, update: unsum.Update) -> float:
    """The rows of ∇W of the labels, with their sign turned, for the features of their samples."""
    labels, sent = labels_by(rule, target, update), head_rows(target, update)
    if not len(labels) or sent is None:
        return 0.0
    rows = nn.functional.one_hot(labels, target.classes).double()
    features = -sent[labels]
    leak = Leak(
        "rows", rows, rows, features, float("nan"), float("nan"), exact=False, knowledge=Knowledge()
    )
    return target.share(update, leak)


def by_ratio(target: Target, update: unsum.Update) -> float:
    """The largest share of a sample in one row over its bias, of the dense layers that read it."""
    most = 0.0
    for name, layer in target.model.named_modules():
        grad_W, grad_b = (update.gradients.get(f"{name}.{part}") for part in ("weight", "bias"))
        if not isinstance(layer, nn.Linear) or grad_W is None or grad_b is None:
            continue
        with inputs_of(layer) as seen, torch.no_grad():
            target.model(target.images)
        true = seen[-1].flatten(1).double()
        rows = grad_W.double() / grad_b.double()[:, None]
        rows = rows[rows.isfinite().all(1)]
        others = true.mean(0) if len(true) > 1 else torch.zeros_like(true[0])
        for sample in true:
            typical = float((others - sample).square().sum())
            if len(rows) and typical > 1e-6 * float(sample.square().sum()):
                most = max(most, 1 - float((rows - sample).square().sum(1).min()) / typical)
    return most


def by_embeddings(target: Target, update: unsum.Update) -> float:
    """The largest share of an embedding's rows in question, beyond a guess, among those that are
    not zero or stand out."""
    most = 0.0
    for name, layer in target.model.named_modules():
        if isinstance(layer, nn.Embedding):
            with inputs_of(layer) as seen, torch.no_grad():
                target.model(target.images)
            true = set(seen[-1].flatten().tolist())
            lengths = update.gradients[f"{name}.weight"].double().norm(dim=1)
            middle = lengths.median()
            spread = 1.4826 * (lengths - middle).abs().median()
            for found in (lengths > 0, lengths > middle + FAR * spread):
                rows = set(found.nonzero()[:, 0].tolist())
                guess = len(true) / layer.num_embeddings
                most = max(
                    most,
                    (len(rows & true) - guess * len(rows)) / max(len(true) * (1 - guess), 1e-9),
                )
    return most


def by_matching(setting: str, target: Target, update: unsum.Update) -> float:
    """The largest share of a picture, up to its tone, with the labels granted."""
    method, options = SETTINGS[setting]
    try:
        leak = match(
            target.model,
            update,
            method,
            labels=target.labels,
            image_size=tuple(target.images.shape[1:]),
            **options,
        )
    except UnsumError:
        return 0.0
    assert leak.images is not None
    cosines = [picture_cosine(found, true) for found in leak.images for true in target.images]
    return max((cosine * abs(cosine) for cosine in cosines if cosine == cosine), default=0.0)
