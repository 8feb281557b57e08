"""Audit one round: a client trains on private photos, the server attacks its update, the result is
scored."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unsum.active import modify
from unsum.attack.options import AttackOptions
from unsum.audit.bounds import NEEDS_SAMPLES, NOT_PROVEN, SHORT, Bounds
from unsum.audit.compare import CAPTURED, Comparison
from unsum.audit.compare import compare as under_others
from unsum.audit.groups import (
    Attacker,
    AuditLimits,
    ClientSamples,
    ClientTraining,
    Loading,
    grouped,
)
from unsum.audit.inputs import Data, Inputs
from unsum.audit.leakage import Tried
from unsum.audit.other_networks import attacks_on, audit_other
from unsum.audit.provenance import Provenance, fingerprint, promised, samples_of
from unsum.audit.report import Audit
from unsum.audit.result import DepthRead, Setting
from unsum.audit.round import attacked, play, without_head
from unsum.audit.sweep.bench import Bench, shown
from unsum.audit.text import audit_text, is_text, texts_of
from unsum.audit.text_verdict import Texts
from unsum.client.any_network import is_annotated
from unsum.client.capture import in_mode
from unsum.data.arrays import as_tensors
from unsum.data.table_file import is_table
from unsum.data.texts import TextData
from unsum.defend import Defense
from unsum.errors import NoHeadError, UnsumError
from unsum.models import DEFAULT_MODEL, LoadedModel
from unsum.models.received import Received
from unsum.running.progress import SILENT, Progress
from unsum.running.sharing import sharing_models
from unsum.running.watching import shown_in_notebooks
from unsum.score import summarize
from unsum.update import Update

_BUFFERS = (
    "The round was not played again under other defenses: they change gradients, and leave the "
    "buffers as they are."
)
_UNKNOWN = "unknown: the update was captured elsewhere"


@shown_in_notebooks
@grouped
@sharing_models()  # rounds under several defenses are of one model
def audit(
    model: nn.Module | str = DEFAULT_MODEL,
    data: Data | TextData | None = None,
    *,
    update: Update | Received | str | Path | None = None,
    loading: Loading = Loading(),
    samples: ClientSamples = ClientSamples(),
    client: ClientTraining = ClientTraining(),
    attacker: Attacker = Attacker(),
    limits: AuditLimits = AuditLimits(),
    defenses: Defense | Iterable[Defense] = (),
    device: torch.device | str | None = None,
    seed: int = 0,
    command: str = "",
    progress: Progress = SILENT,
) -> Audit:
    """What would one client update of this model give away, or what does one give away that was
    captured?

    Leakage of a sample x is 1 − ‖x̂ − x‖² / ‖m − x‖², with m the best guess that needs no update
    (public data, or the mean of the client's other samples where they differ).

    Args:
        model: a name, as `unsum.models.load_model` takes it (`default`, `torchvision:NAME`,
            `path/to/file.py:factory`, …), or your own module (then give `data` or `update` too).
        data: the client's private (images, targets), tensors or arrays, or where they lie: a
            folder, tar or npz, `torchvision:NAME:ROOT`, `hf:PATH`; the embedded photos by default.
            A table is a .csv, .tsv or .parquet file, with its `target`. For a language model: (n,
            L) token numbers, a list of texts, or a file with one text a line.
        update: what a server received, instead of `data`: an `Update`, its file, or
            `Received(before=…, after=…)`. There is no truth then, and the result holds what the
            attack itself vouches for.
        loading: where a model given by name comes from (`unsum.Loading`).
        samples: which samples the client has (`unsum.ClientSamples`).
        client: how it trains (`unsum.ClientTraining`).
        attacker: what the attacker does and is granted (`unsum.Attacker`); nothing but the model
            and the update by default.
        limits: how long that takes, and what is computed besides (`unsum.AuditLimits`).
        defenses: applied to the update before the server sees it.
        progress: an `unsum.running.progress.Progress`, told the stages and the steps of attacks
            that iterate.

    Returns:
        An `Audit`; `audit.write("folder")` makes the report.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> report = unsum.audit(model, data)
        >>> report.verdict.level, min(report.leakages) > 0.99
        ('severe', True)
    """
    start = time.perf_counter()
    data = as_tensors(data)
    progress.say(
        "Loading the model and " + ("the client's samples" if update is None else "the update")
    )
    options = attacker.options(client, limits, device, seed)
    training, server, loss = client.training, attacker.server, client.declared_loss
    inputs = Inputs(model, data, update, loading, samples, loss, seed)
    chain = [defenses] if isinstance(defenses, Defense) else list(defenses)
    if client.buffers and (update is not None or training is not None or is_text(model)):
        raise UnsumError(
            "Buffers are sent along by a client that is simulated and takes one step on photos; "
            "leave buffers (--buffers) out."
        )
    if update is not None:
        if data is not None or chain:
            raise UnsumError(
                "An update that was captured is attacked as it is; leave data and defenses out."
            )
        if training is not None:
            raise UnsumError(
                "An update that was captured says how its client trained (Received(steps=…), "
                "Update.of_training); leave the local training out."
            )
        if server is not None:
            raise UnsumError(
                "A server can change the model only before the client trains; leave the captured "
                "update out."
            )
        return _audit_captured(
            inputs, options, train=client.train, command=command, progress=progress
        )
    if not is_table(data) and is_text(model):
        if server is not None or training is not None or loss is not None:
            raise UnsumError(
                "A client's text is played as one plain step; leave server, loss and local "
                "training out."
            )
        return audit_text(
            inputs,
            chain,
            options,
            train=client.train,
            command=command,
            progress=progress,
            proving=limits.ceiling,
            level=limits.prove_below,
        )
    how_other: dict[str, Any] = {"train": client.train, "command": command, "progress": progress}
    how_other |= {"proving": limits.ceiling, "level": limits.level}
    other = functools.partial(audit_other, inputs, client.own_loss, chain, options, **how_other)
    plain = not (client.buffers or training or server)
    if plain and (client.own_loss is not None or is_annotated(data)):
        return other()
    try:
        loaded, own = inputs.simulated()
    except NoHeadError:
        if not plain or data is None:
            raise
        return other()
    if own.resized:
        progress.say(own.resized)
    network, name, reader = loaded.model.to(options.device), loaded.name, None
    network.input_shape = tuple(own.images.shape[1:])  # type: ignore[assignment] # a server knows what its model takes
    if server is not None:
        network, reader = modify(network, server, shape=tuple(own.images.shape[1:]), seed=seed)
        name = f"{name}, changed by the server ({reader.name}: {reader.summary})"
    bench = Bench(
        network, own, options, client.train, training, reader, client.buffers, progress=progress
    )
    weights_sent = fingerprint(network.state_dict())
    played = play(bench, chain, progress)
    leak, told = played.leak, dict(vars(played))
    sent = told.pop("update")
    steps = 1 if training is None else training.steps or 1
    privacy = promised(chain, steps=steps, tensors=len(sent.gradients), buffers=client.buffers)
    made = Provenance.of(
        model=weights_sent, data=samples_of(own), update=sent.gradients, privacy=privacy
    )
    bounds = Bounds.of(bench, level=limits.level, progress=progress)
    bound = None
    if limits.ceiling:
        progress.say("Playing the client in two worlds: what nobody can exceed")
        bound = bounds(chain)
    rows = Bounds.of(bench, seconds=SHORT, together=True) if limits.ceiling else None
    how: dict[str, Any] = {
        "train": client.train,
        "training": training,
        "defenses": shown(chain),
        "command": command,
    }
    return Audit(
        Setting.of(name, leak, options, samples=len(own.images), provenance=made, **how),
        scores=summarize(leak, played.samples),
        comparison=Comparison(absent=_BUFFERS)
        if client.buffers
        else under_others(played, bench, chain, limits.compare, rows, bound),
        seconds=time.perf_counter() - start,
        depth=DepthRead.of(network, leak),
        bound=bound,
        unbounded=bounds.absent if limits.ceiling else NOT_PROVEN,
        **told,
    )


def _audit_captured(
    inputs: Inputs, options: AttackOptions, *, train: bool, command: str, progress: Progress
) -> Audit:
    """Attack an update that came without the truth, and report what the attack itself vouches
    for."""
    start = time.perf_counter()
    loaded, update = inputs.captured()
    update.validate(loaded.model)  # what does not fit is wrong, and no audit of it
    names = inputs.class_names(loaded.model)
    options = _of_size(inputs, update, options)
    how: dict[str, Any] = {"train": train, "command": command, "progress": progress, "start": start}
    return _without_truth(
        inputs, loaded, update, options, names, defenses=_UNKNOWN, absent=CAPTURED, **how
    )


def _of_size(inputs: Inputs, update: Update, options: AttackOptions) -> AttackOptions:
    if options.batch_size_known:
        size = inputs.samples.batch or update.batch_size
        if size is None:
            raise UnsumError(
                "The update does not record its batch size; say how many samples it is of "
                "(--batch)."
            )
        return options.of_batch(size)
    return options


def _without_truth(
    inputs: Inputs,
    loaded: LoadedModel,
    update: Update,
    options: AttackOptions,
    names: list[str],
    *,
    train: bool,
    defenses: str,
    absent: str,
    command: str,
    progress: Progress,
    start: float,
) -> Audit:
    """What the attack itself vouches for."""
    network = loaded.model.to(options.device)
    sent = update.map(lambda _name, tensor: tensor.to(options.device))
    with in_mode(network, train):
        if without_head(network):
            leak = attacks_on(network, sent, options, None, progress=progress)
        else:
            leak = attacked(network, sent, options, progress)
            leak = replace(leak, notes=[*update.notes, *leak.notes])
    texts = texts_of(leak, inputs.model)
    made = Provenance.of(model=fingerprint(network.state_dict()), update=sent.gradients)
    how: dict[str, Any] = {
        "train": train,
        "defenses": defenses,
        "command": command,
        "training": update.training,
    }
    return Audit(
        Setting.of(loaded.name, leak, options, samples=leak.batch_size, provenance=made, **how),
        *(None, leak, [], {}, time.perf_counter() - start),
        comparison=Comparison(absent=absent),
        tried=[Tried.of(attempt, [], made_up=leak.made_up) for attempt in leak.tried],
        undecided=without_head(network) or leak.undecided,
        depth=DepthRead.of(network, leak),
        unbounded=NEEDS_SAMPLES,
        class_names=names,
        texts=None if texts is None else Texts([], texts),
    )
