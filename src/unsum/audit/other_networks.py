"""Audits of networks without a linear head: updates are read by what applies, or nothing is
decided.

What applies are the rows of dense layers, which give inputs away whatever the loss, and gradient
matching, because the gradient of the client's loss is a function of inputs and targets. They have a
ceiling all the same, as everything that can be trained twice.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unsum.attack.any_network import LOSS_UNKNOWN, NO_PICTURES, match_any_network, not_matched
from unsum.attack.options import AUTO, AttackOptions
from unsum.audit.bounds import NO_TENSORS, NOT_PROVEN, Bounds
from unsum.audit.compare import Comparison
from unsum.audit.inputs import Inputs
from unsum.audit.leakage import DEFAULT_LEVEL, Shares, Tried, Truth, strongest
from unsum.audit.provenance import Provenance, fingerprint, promised, samples_of
from unsum.audit.report import Audit
from unsum.audit.result import DepthRead, Setting
from unsum.audit.round import Sent, attacked, shares_of, without_head
from unsum.audit.sweep.bench import shown
from unsum.ceiling.client import Played, World
from unsum.ceiling.simulation import Simulation
from unsum.client.any_network import capture_any, usual_loss
from unsum.client.capture import in_mode
from unsum.client.step import ordered
from unsum.data import Batch
from unsum.defend import Defense
from unsum.errors import UnsumError
from unsum.leak import Attempt, Leak
from unsum.losses import BinaryCrossEntropy, declared
from unsum.match.protocol import Form, Protocol
from unsum.network.loss_function import LossFunction, function_of
from unsum.running.progress import SILENT, Progress
from unsum.score import SampleScore, score_samples, summarize
from unsum.score.reference import are_pictures
from unsum.update import Update

_ABSENT = (
    "The round was not played again under defenses: the network has no head that they are compared "
    "at."
)
# nothing was found that could be compared with a sample
_UNSCORED = SampleScore(None, *(math.nan,) * 7)


@dataclass(frozen=True)
class OtherSent(Sent):
    """The client's side of a network without a head: what stands in the place of features are the
    inputs themselves."""

    @cached_property
    def features(self) -> Tensor:
        return self.images.flatten(1)

    @cached_property
    def truth(self) -> Truth:
        return Truth(self.images, self.features)


@dataclass(frozen=True)
class OtherClient:
    """A client of such a network, and who attacks it."""

    model: nn.Module
    inputs: Any
    targets: Any
    loss: LossFunction | None
    form: Form | None  # of the targets, as far as the loss says
    train: bool
    options: AttackOptions

    def update(self, inputs: Any, targets: Any) -> Update:
        return capture_any(self.model, inputs, targets, self.loss, train=self.train)

    @property
    def has_tensors(self) -> bool:
        return isinstance(self.inputs, Tensor) and isinstance(self.targets, Tensor)

    @property
    def protocol(self) -> Protocol | None:
        """What the server knows of it; None where its samples are no pictures in tensors."""
        if not self.has_tensors or not are_pictures(self.inputs):
            return None
        form: Form = self.form or ("numbers" if self.targets.is_floating_point() else "classes")
        return Protocol(
            self.loss or usual_loss,
            tuple(self.inputs.shape[1:]),
            tuple(self.targets.shape[1:]),
            form,
        )


def audit_other(
    inputs: Inputs,
    loss: LossFunction | None,
    chain: list[Defense],
    options: AttackOptions,
    *,
    train: bool,
    command: str,
    progress: Progress,
    proving: bool,
    level: float,
) -> Audit:
    """Client, attacks, score and ceiling; without tensors of inputs and targets there is no truth
    to compare with."""
    start = time.perf_counter()
    loaded, given, targets = inputs.other()
    named = declared(options.loss)
    form: Form | None = None
    if loss is None and named is not None:
        loss, form = (
            function_of(named),
            "shares" if isinstance(named, BinaryCrossEntropy) else "numbers",
        )
        if loss is None:
            raise UnsumError(
                f"The loss {named.name!r} is known of classifiers with a linear head alone; give "
                "it as a function of the model's output and the targets: unsum.audit(model, data, "
                "client=unsum.ClientTraining(loss=function))."
            )
    if isinstance(given, Tensor) and isinstance(targets, Tensor):
        given, targets = given.to(options.device or "cpu"), targets.to(options.device or "cpu")
    client = OtherClient(
        loaded.model.to(options.device), given, targets, loss, form, train, options
    )
    torch.manual_seed(options.seed)
    update = client.update(given, targets)
    for part in ordered(chain):
        update = part(update)  # type: ignore[operator] # those that work inside the client refuse
    leak = attacks_on(client.model, update, options, client.protocol, client, progress)
    bounds, network = None, client.model
    if client.has_tensors:
        case = Simulation(network, given, targets, train=train, seed=options.seed)

        def played(world: World) -> Played:
            return Played(client.update(world.inputs, world.targets).gradients)

        bounds = Bounds(case, level, client=played, progress=progress)
    scored = _scored(client, update, leak) if client.has_tensors else _unscored(network, leak)
    bound = None
    if bounds is not None and proving:
        progress.say("Playing the client in two worlds: what nobody can exceed")
        bound = bounds(chain)
    absent = NOT_PROVEN if not proving else NO_TENSORS if bounds is None else bounds.absent
    leak = scored.pop("leak")
    privacy = promised(chain, steps=1, tensors=len(update.gradients), buffers=False)
    own = None if scored["truth"] is None else samples_of(scored["truth"])
    weights = fingerprint(network.state_dict())
    made = Provenance.of(model=weights, data=own, update=update.gradients, privacy=privacy)
    samples = len(given)
    how: dict[str, Any] = {
        "train": train,
        "defenses": shown(chain),
        "command": command,
        "training": None,
    }
    return Audit(
        Setting.of(loaded.name, leak, options, samples=samples, provenance=made, **how),
        leak=leak,
        seconds=time.perf_counter() - start,
        comparison=Comparison(absent=_ABSENT),
        depth=DepthRead.of(network, leak),
        bound=bound,
        unbounded=absent,
        **scored,
    )


def attacks_on(
    model: nn.Module,
    update: Update,
    options: AttackOptions,
    protocol: Protocol | None,
    client: OtherClient | None = None,
    progress: Progress = SILENT,
) -> Leak:
    """The attack's answer, with what matching got among those that were tried; the client grants
    its targets for one try."""
    sent = update.map(lambda _name, tensor: tensor.to(options.device))
    with in_mode(model, client is None or client.train):
        leak = attacked(model, sent, options, progress)
        if options.method != AUTO:
            return leak
        more: list[Attempt]
        if protocol is None:
            more = [not_matched(LOSS_UNKNOWN if client is None else NO_PICTURES)]
        else:
            granted = None if client is None else client.targets
            how: dict[str, Any] = {"spent": leak.seconds, "granted": granted, "progress": progress}
            more = match_any_network(model, sent, protocol, options, **how)
    told = [attempt.refused for attempt in more if attempt.refused]
    return replace(leak, tried=[*leak.tried, *more], notes=[*update.notes, *leak.notes, *told])


def _scored(client: OtherClient, update: Update, leak: Leak) -> dict[str, Any]:
    """Every attack beside the truth, now that all are over; the strongest answer that leaks is the
    one given."""
    x, options = client.inputs, client.options
    sent = OtherSent(client.model, x, client.targets, update, client.train, options.seed)
    got = [_shares(sent, attempt.leak) for attempt in leak.tried]
    best = _shares(sent, leak) or [Shares()] * len(x)
    for own in filter(None, got):
        best = [share.or_better(other) for share, other in zip(best, own, strict=True)]
    tried = [
        Tried.of(one, [share.most for share in own])
        for one, own in zip(leak.tried, got, strict=True)
    ]
    undecided = without_head(client.model) or leak.undecided
    shares = [share.where_decided(not undecided) for share in best]
    by = [
        "" if math.isnan(share.most) else name
        for share, name in zip(shares, strongest(tried, len(x)), strict=True)
    ]
    leak = _given(leak, got)
    samples = _samples(sent, leak)
    titles = [f"sample {i + 1}" for i in range(len(x))]
    return {
        "leak": leak,
        "truth": Batch(x.cpu(), client.targets.cpu(), titles, []),
        "samples": samples,
        "scores": summarize(leak, samples),
        "shares": shares,
        "by": by,
        "tried": tried,
        "undecided": undecided,
    }


def _given(leak: Leak, got: list[list[Shares]]) -> Leak:
    """The answer with the largest share, where one is above the level: its pictures are shown, and
    what it was granted."""
    answers = [
        (max(share.most for share in own), one.leak)
        for one, own in zip(leak.tried, got, strict=True)
        if one.leak and own
    ]
    largest, best = max(answers, key=lambda pair: pair[0], default=(0.0, None))
    if best is None or not largest >= DEFAULT_LEVEL:
        return leak
    kept = {name: getattr(leak, name) for name in ("tried", "occurred", "embedding_rows")}
    return replace(best, **kept, notes=[*leak.notes, *best.notes])


def _samples(sent: OtherSent, leak: Leak | None) -> list[SampleScore]:
    if leak is None or leak.images is None or leak.images.shape[1:] != sent.images.shape[1:]:
        return [_UNSCORED] * len(sent.images)
    return score_samples(leak, sent.images)


def _shares(sent: OtherSent, leak: Leak | None) -> list[Shares]:
    return [] if leak is None else shares_of(sent, leak, _samples(sent, leak))


def _unscored(model: nn.Module, leak: Leak) -> dict[str, Any]:
    return {
        "leak": leak,
        "truth": None,
        "samples": [],
        "scores": {},
        "tried": [Tried.of(attempt, []) for attempt in leak.tried],
        "undecided": without_head(model) or leak.undecided,
    }
