"""One round: the client trains and sends, the server attacks, and the answer is held against the
truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unsum.active import Reader, place
from unsum.attack.auto import NothingReadError
from unsum.attack.chain import run_attack
from unsum.attack.last_resort import match_as_last_resort
from unsum.attack.occurred import with_occurred
from unsum.attack.options import AttackOptions
from unsum.attack.reach import too_many
from unsum.audit.leakage import (
    Shares,
    Tried,
    Truth,
    is_same,
    leakages,
    leakages_of_answers,
    leakages_of_rows,
    strongest,
)
from unsum.audit.table_rows import TableRows, rows_of
from unsum.client.augment import target_rows
from unsum.client.capture import capture_trained, in_mode
from unsum.client.local import train_locally
from unsum.client.step import ClientStep, Stage, first_step, ordered
from unsum.data import Batch
from unsum.defend import Defense
from unsum.errors import NoHeadError, UnsumError
from unsum.gradients import inputs_of
from unsum.head import Head, collect_features, find_head, head_shape
from unsum.labels.feature_prior import feature_prior
from unsum.leak import Attempt, Leak
from unsum.local_training import LocalTraining
from unsum.losses import Loss
from unsum.models.table_network import embeds, first_dense
from unsum.notes import Code, Note
from unsum.running.progress import SILENT, Progress
from unsum.running.sharing import sharing_models
from unsum.score import SampleScore, score_samples
from unsum.score.labels import LabelsRead
from unsum.score.occurred import RowsNamed, rows_named
from unsum.score.reference import public_inputs
from unsum.score.samples import label_scores
from unsum.showing.level import DEFAULT_LEVEL
from unsum.update import Update


@dataclass(frozen=True)
class Sent:
    """The client's side: the model as it got it, what it trained on, and what it sent. The attack
    sees model and update."""

    model: nn.Module
    images: Tensor  # as trained on: other ones where a defense blends them
    targets: Tensor
    update: Update
    train: bool
    seed: int
    clients: int = 1  # whose updates the server sees the mean of; each has as many of the images
    watched: Tensor | None = None  # features, as local steps saw them

    @cached_property
    def features(self) -> Tensor:
        """(B, H) what reached the last layer, in the step that saw a sample first."""
        if self.watched is not None:
            return self.watched
        return self.read_by(find_head(self.model)[1]).flatten(1)

    @cached_property
    def truth(self) -> Truth:
        """What answers are held against; features of public data are those of the same model in the
        same mode: their mean, and the mean that an attacker expects."""
        guesses, inputs = [], public_inputs(self.images)
        if inputs is not None:
            with suppress(
                ValueError, IndexError, RuntimeError
            ):  # the model takes other inputs, or fewer are no batch for it
                read = self._read(find_head(self.model)[1], [inputs.to(self.images)])
                guesses.append(read.flatten(1).mean(0))
        # what `adaptive` answers with where noise drowns the update, with public inputs or without
        with suppress(UnsumError), in_mode(self.model, self.train):
            head = Head.of(self.model, self.update)
            for public in {id(given): given for given in (inputs, None)}.values():
                prior = feature_prior(head, self.model, public, self.seed)
                guesses += [] if prior is None else [prior.mean.to(self.images)]
        return Truth(self.images, self.features, torch.stack(guesses) if guesses else None)

    def read_by(self, layer: nn.Module) -> Tensor:
        """(B, …) what a layer read; dropout falls as it fell in the client's own pass."""
        return self._read(layer, self.images.split(len(self.images) // self.clients))

    def _read(self, layer: nn.Module, parts: Sequence[Tensor]) -> Tensor:
        torch.manual_seed(self.seed)
        with in_mode(self.model, self.train), inputs_of(layer) as seen, torch.no_grad():
            for part in parts:
                self.model(part)
        return torch.cat(seen).detach()


@dataclass(frozen=True)
class Compared:
    """An answer beside the truth, sample by sample in the truth's order.

    `shares` are the most that any attack got of every sample, which `by` names. Where `undecided`
    says why nothing can be decided, samples that no attack found have NaN: nobody knows.
    """

    leak: Leak
    samples: list[SampleScore]
    shares: list[Shares]
    by: list[str] = field(default_factory=list, kw_only=True)
    tried: list[Tried] = field(default_factory=list, kw_only=True)
    undecided: str = field(default="", kw_only=True)
    occurred: list[RowsNamed] = field(default_factory=list, kw_only=True)  # rows of embeddings
    labels: LabelsRead | None = field(
        default=None, kw_only=True
    )  # by the strongest attack, which has most beyond a guess

    @property
    def leakages(self) -> list[float]:
        return [share.most for share in self.shares]


@dataclass(frozen=True)
class Round(Compared):
    """A whole round. `truth` is what the client trained on; a sentence says so where that is not
    its own samples."""

    truth: Batch
    trained_on: str
    update: Update
    table: TableRows | None = None


@dataclass(frozen=True, eq=False)
class ClientCase:
    """A client and who attacks it, whatever its defense. It minimizes the loss that the options
    declare."""

    model: nn.Module
    batch: Batch
    options: AttackOptions
    train: bool  # BatchNorm's mode
    training: LocalTraining | None = None  # one step by default; the server knows
    reader: Reader | None = None  # of a server that changed the model first
    buffers: bool = False  # BatchNorm's, sent along

    @cached_property
    def samples(self) -> tuple[Tensor, Tensor]:
        device = torch.device(self.options.device or "cpu")
        return self.batch.images.to(device), self.batch.targets.to(device)


@sharing_models()  # the attack and the guesses that its answer is held against
def play(case: ClientCase, defenses: Sequence[Defense], progress: Progress = SILENT) -> Round:
    """Client, attack, score."""
    progress.say("The client computes its update")
    model, batch, options, reader = case.model, case.batch, case.options, case.reader
    how: dict[str, Any] = {"train": case.train, "training": case.training, "buffers": case.buffers}
    sent = send(model, *case.samples, defenses, seed=options.seed, loss=options.loss, **how)
    with in_mode(model, case.train):  # how clients train is the server's own protocol
        public = options.public if options.public is not None else public_inputs(sent.images)
        options = replace(options.of_batch(len(sent.images)), public=public)
        leak = attacked(model, sent.update, options, progress)
        told = sent.update.statistics.note
        leak = leak if told is None else replace(leak, notes=[told, *leak.notes])
        if reader is not None:
            progress.say("Reading the layer that the server put in")
            leak = place(model, leak, reader, reader.read(sent.update))
            own = Attempt(
                reader.name,
                leak,
                blind="several samples may have driven the same rows",
                at_head=False,
            )
            leak = replace(leak, tried=[*leak.tried, own])
    progress.say("Comparing with the truth")
    compared = compare_with_truth(sent, leak)
    if reader is None and not any(value >= DEFAULT_LEVEL for value in compared.leakages):
        compared = _with_matching(case, sent, compared, progress)
        leak = compared.leak
    truth = as_trained(batch, sent)
    trained_on = ""
    if not torch.equal(truth.images, batch.images.cpu()):
        mixers = " | ".join(
            repr(part) for part in ordered(defenses) if getattr(part, "stage", None) == Stage.BATCH
        )
        trained_on = (
            f"{mixers} blends the client's samples before it trains on them. What came back is "
            "compared with these blends, not with single samples: each stands under the name of "
            "one of its two samples and the larger of its two labels."
        )
    rows = rows_of(model, leak, compared.shares, truth, sent.truth)
    return Round(
        **vars(compared), truth=truth, trained_on=trained_on, update=sent.update, table=rows
    )


def _with_matching(
    case: ClientCase, sent: Sent, compared: Compared, progress: Progress
) -> Compared:
    """The same after a search for small pictures, whose answer is the one given where it is above
    the level."""
    leak, options = compared.leak, case.options.of_batch(len(sent.images))
    with in_mode(case.model, case.train):
        shape, granted = tuple(sent.images.shape[1:]), None if options.other_loss else sent.targets
        more = match_as_last_resort(
            case.model, sent.update, leak, options, shape, progress, granted=granted
        )
    if not more:
        return compared
    tried = [*leak.tried, *more]
    for found in (attempt.leak for attempt in more if attempt.leak is not None):
        if any(share.most >= DEFAULT_LEVEL for share in shares_of(sent, found)):
            return compare_with_truth(
                sent,
                replace(
                    found,
                    tried=tried,
                    named=leak.named,
                    occurred=leak.occurred,
                    embedding_rows=leak.embedding_rows,
                ),
            )
    notes = [*leak.notes, *(attempt.refused for attempt in more if attempt.refused)]
    return compare_with_truth(sent, replace(leak, tried=tried, notes=notes))


def attacked(
    model: nn.Module, update: Update, options: AttackOptions, progress: Progress = SILENT
) -> Leak:
    """The attack's answer; one without samples, which says what was tried, where no attack can read
    the update."""
    try:
        return run_attack(model, update, options, progress)
    except NothingReadError as reason:
        return with_occurred(
            model, update, unanswered(model, options.method, reason.tried, str(reason))
        )


def unanswered(model: nn.Module, method: str, tried: list[Attempt], reason: str) -> Leak:
    classes, width = head_shape(model)
    none = torch.zeros(0, classes, dtype=torch.float64)
    features, unknown = torch.zeros(0, width), float("nan")
    return Leak(method, none, none, features, unknown, unknown, False, tried=tried, notes=[reason])


def without_head(model: nn.Module) -> str:
    """Why nothing can be decided about a network that is no classifier, and what to do; empty where
    it is one."""
    try:
        find_head(model)
    except NoHeadError as reason:
        return Note(
            f"the network has no linear head to start from ({reason.why}). Attacks on such "
            "networks are not complete: treat its updates as the samples themselves, and protect "
            "them by noise with a proven bound (dp) or by secure aggregation",
            Code.NO_HEAD,
        )
    return ""


def send(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    defenses: Sequence[Defense],
    *,
    train: bool,
    seed: int,
    training: LocalTraining | None = None,
    loss: str | Loss | None = None,
    buffers: bool = False,
) -> Sent:
    """What the client does and sends; `seed` fixes what its defenses and its dropout draw.

    Of several local steps, samples and features are noted as each step of the first epoch saw them.
    """
    torch.manual_seed(seed)
    whole = first_step(model, images, targets, train, loss)
    if training is None:
        update, images, targets = capture_trained(whole, defenses, buffers=buffers)
        return Sent(model, images, targets, update, train, seed)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    first_epoch = (training.steps or 1) // training.epochs

    def watch(number: int, step: ClientStep) -> None:
        if number < first_epoch:
            # dropout falls alike in the step itself
            with torch.random.fork_rng(), in_mode(step.model, train):
                seen.append((step.images, step.targets, collect_features(step.model, step.images)))

    update = train_locally(whole, training, defenses, watch=watch)
    own, rows, features = (torch.cat(parts) for parts in zip(*seen, strict=True))
    return Sent(model, own, rows, update, train, seed, watched=features)


def compare_with_truth(sent: Sent, leak: Leak) -> Compared:
    """Every attack that was tried is scored now that it is over, and the strongest counts for each
    sample."""
    samples = score_samples(leak, sent.images, sent.targets, sent.features)
    final = Attempt(leak.method, leak)
    attempts = leak.tried or [final]
    last = shares_of(sent, leak, samples)
    got = [
        _with_pictures(attempt, shares_of(sent, attempt.leak), final, last) for attempt in attempts
    ]
    read = [labels_read(sent, attempt) for attempt in [final, *attempts]]
    rows = zip(attempts, got, read[1:], strict=True)
    tried = [
        Tried.of(attempt, [share.most for share in own], right) for attempt, own, right in rows
    ]
    by = strongest([*tried, Tried.of(final, [share.most for share in last])], len(samples))
    undecided, best = why_undecided(sent, leak), last
    for own in filter(None, got):
        best = [share.or_better(other) for share, other in zip(best, own, strict=True)]
    shares = [share.where_decided(not undecided) for share in best]
    by = ["" if math.isnan(share.most) else name for share, name in zip(shares, by, strict=True)]
    labels = max(read, key=lambda one: one.share)
    samples = label_scores(
        samples, labels.rows, target_rows(sent.targets.cpu(), leak.targets.shape[1])
    )
    head = find_head(sent.model)[1]  # before the rows are watched: it may take passes of its own
    named = rows_named(leak.occurred, sent.model, lambda: sent.read_by(head))
    further: dict[str, Any] = {"undecided": undecided, "labels": labels, "occurred": named}
    return Compared(leak, samples, shares, by=by, tried=tried, **further)


def _with_pictures(
    attempt: Attempt, own: list[Shares], final: Attempt, last: list[Shares]
) -> list[Shares]:
    """What one attack got; of the attack whose answer is given, with the pictures that were made of
    it afterwards."""
    if attempt.leak is None or attempt.method != final.method or not own:
        return own
    return [share.or_better(other) for share, other in zip(own, last, strict=True)]


def labels_read(sent: Sent, attempt: Attempt) -> LabelsRead:
    """How many of the true labels one attack found, as a multiset."""
    classes = find_head(sent.model)[1].out_features
    none = torch.zeros(0, classes, dtype=torch.float64)
    granted = attempt.leak is None or attempt.leak.knowledge.labels is not None  # and were not read
    found = none if granted or attempt.leak is None else attempt.leak.targets
    if attempt.labels is not None:
        found = torch.nn.functional.one_hot(attempt.labels.cpu(), classes).double()
    true = target_rows(sent.targets.cpu(), classes).double()
    return LabelsRead.of(found.detach().cpu().double(), true, attempt.method)


def why_undecided(sent: Sent, leak: Leak) -> str:
    """Why samples that no attack found may leak all the same; empty where they do not leak to the
    attacks tried.

    The true batch size says more than the attack could know: noise may hide that there are more
    samples than directions.
    """
    _, head = find_head(sent.model)
    crowd = too_many(len(sent.images), head.out_features, head.in_features, leak.loss)
    if (
        crowd
        and leak.tried
        and all(attempt.at_head or attempt.blind or attempt.refused for attempt in leak.tried)
    ):
        return crowd
    return leak.undecided


def shares_of(
    sent: Sent, leak: Leak | None, samples: list[SampleScore] | None = None
) -> list[Shares]:
    """Of every true sample: by features and pixels, and by rows read at dense layers."""
    if leak is None:
        return []
    rows = samples or score_samples(leak, sent.images, sent.targets, sent.features)
    got = leakages(leak, rows, sent.truth)
    modules = dict(sent.model.named_modules())
    for name, found in [*leak.readings.items(), *leak.inner.items()]:
        if found.ndim != 2 or not len(found):
            continue
        read = sent.read_by(modules.get(name, sent.model))
        if read.ndim != 2:  # of sequences, a row is a token's
            continue
        whole = is_same(read, sent.images) or _reads_codes(sent.model, name)
        if name in leak.readings:
            values = leakages_of_rows(found, read, sent.truth)
        elif whole:
            values = leakages_of_answers(leak, found, read, rows, sent.truth)
        else:
            continue  # of what lies between, the features that it leads to are scored
        kind = "sample" if whole else "features"
        got = [
            share.or_better(Shares(**{kind: value}))
            for share, value in zip(got, values, strict=True)
        ]
    return got


def _reads_codes(model: nn.Module, name: str) -> bool:
    """Whether a layer reads embedded rows of a table, which are the rows themselves: each code is
    that of an embedding."""
    first = first_dense(model)
    return embeds(model) and first is not None and first[0] == name


def as_trained(batch: Batch, sent: Sent) -> Batch:
    """The batch that the gradient was computed on, under the names of the client's own."""
    return replace(batch, images=sent.images.cpu(), targets=sent.targets.cpu())
