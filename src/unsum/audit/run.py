"""Audit one round: a client trains on private photos, the server attacks its update, the result is scored."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from unsum.active import modify
from unsum.attack.chain import run_attack
from unsum.attack.options import AUTO, AttackOptions
from unsum.attack.pictures import Inverses
from unsum.audit.answer import Audit
from unsum.audit.compare import CAPTURED, Comparison
from unsum.audit.compare import compare as under_others
from unsum.audit.inputs import Data, Inputs
from unsum.audit.result import Setting
from unsum.audit.round import play
from unsum.audit.sweep.bench import shown
from unsum.client.capture import in_mode
from unsum.defend import Defense
from unsum.errors import UnsumError
from unsum.invert.refine import Mode
from unsum.models import DEFAULT_MODEL
from unsum.models.received import Received
from unsum.progress import SILENT, Progress
from unsum.score import summarize
from unsum.update import Update

_UNKNOWN = "unknown: the update was captured elsewhere"


def audit(
    model: nn.Module | str = DEFAULT_MODEL,
    data: Data | None = None,
    *,
    update: Update | Received | str | Path | None = None,
    weights: str | Path | None = None,
    classes: int | None = None,
    download: bool = False,
    batch: int | None = None,
    same_label: int = 0,
    defenses: Defense | Iterable[Defense] = (),
    server: str | None = None,
    attack: str = AUTO,
    label_rule: str | None = None,
    refine: Mode | None = None,
    batch_size_known: bool = False,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    inverse: Inverses = None,
    train: bool = True,
    compare: bool | None = False,
    device: torch.device | str | None = None,
    seed: int = 0,
    command: str = "",
    progress: Progress = SILENT,
) -> Audit:
    """What would one client update of this model give away, or what does one give away that was captured?

    Leakage of a sample x is 1 − ‖x̂ − x‖² / ‖m − x‖², with m the mean of the client's other samples.

    Args:
        model: a name, as `unsum.models.load_model` takes it (`default`, `torchvision:NAME`, `path/to/file.py:factory`, …), or
            your own module (then give `data` or `update` too).
        weights: a `.safetensors`, `.pt` or `.npz` state dict for a model given by name.
        data: the client's private (images, targets), or where they lie: a folder, tar or npz, `torchvision:NAME:ROOT`, `hf:PATH`;
            the embedded photos by default.
        update: what a server received, instead of `data`: an `Update`, its file, or `Received(before=…, after=…)`. There is no
            truth then, and the result holds what the attack itself vouches for.
        classes: of the model; by default as many as the data or the update have.
        download: fetch published weights of torchvision's that are not on this disk.
        batch, same_label: how many photos (8 by default), and how many of them share one label; where the data lie in files,
            `seed` chooses them.
        defenses: applied to the update before the server sees it.
        server: one that changes the model before the client trains, `imprint` or `traps` (`imprint:bins=64`); the report shows
            in red that it may. An honest server by default.
        attack: `auto` or the name of a separator; the attacker is given the model and the update, nothing else.
        label_rule: a rule that finds the labels first; without one the attack finds them in its own way.
        refine: a mode that refines the inverse's pictures, as in `attack`.
        batch_size_known, auxiliary: grant the attacker the batch size, or labeled samples of its own, which some label
            rules need; the result says so.
        inverse: an inverse that `unsum train-inverse` made for this backbone, for pictures.
        train: the client's BatchNorm mode.
        compare: play the round again under standard defenses, for the report; None does so where it costs little.
        progress: an `unsum.progress.Progress`, told the stages and the steps of attacks that iterate.

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
    progress.say("Loading the model and " + ("the client's photos" if update is None else "the update"))
    options = AttackOptions(
        attack,
        batch_size_known=batch_size_known,
        label_rule=label_rule,
        auxiliary=auxiliary,
        inverse=inverse,
        refine=refine,
        device=torch.device(device or "cpu"),
        seed=seed,
    )
    options.check()  # before the client computes anything
    inputs = Inputs(model, data, update, weights, classes, download, batch, same_label, seed)
    chain = [defenses] if isinstance(defenses, Defense) else list(defenses)
    if update is not None:
        if data is not None or chain:
            raise UnsumError("An update that was captured is attacked as it is; leave data and defenses out.")
        if server is not None:
            raise UnsumError(
                "A server can change the model only before the client trains; leave the captured update out."
            )
        return _audit_captured(inputs, options, train=train, command=command, progress=progress)
    loaded, own = inputs.simulated()
    network, name, reader = loaded.model.to(options.device), loaded.name, None
    if server is not None:
        network, reader = modify(network, server, shape=tuple(own.images.shape[1:]), seed=seed)
        name = f"{name}, changed by the server ({reader.name}: {reader.summary})"
    played = play(network, own, chain, options, train=train, reader=reader, progress=progress)
    leak = played.leak
    return Audit(
        Setting.of(name, leak, options, samples=len(own.images), train=train, defenses=shown(chain), command=command),
        played.truth,
        leak,
        played.samples,
        summarize(leak, played.samples),
        leakages=played.leakages,
        comparison=under_others(played, network, own, chain, options, progress, train=train, wanted=compare),
        trained_on=played.trained_on,
        seconds=time.perf_counter() - start,
    )


def _audit_captured(inputs: Inputs, options: AttackOptions, *, train: bool, command: str, progress: Progress) -> Audit:
    """Attack an update that came without the truth, and report what the attack itself vouches for."""
    start = time.perf_counter()
    loaded, update = inputs.captured()
    if options.batch_size_known:
        options = options.of_batch(_granted(inputs.batch, update))
    network = loaded.model.to(options.device)
    sent = update.map(lambda _name, tensor: tensor.to(options.device))
    with in_mode(network, train):
        leak = run_attack(network, sent, options, progress)
    leak = replace(leak, notes=[*update.notes, *leak.notes])
    setting = Setting.of(
        loaded.name, leak, options, samples=leak.batch_size, train=train, defenses=_UNKNOWN, command=command
    )
    seconds = time.perf_counter() - start
    return Audit(setting, None, leak, [], {}, seconds, comparison=Comparison(absent=CAPTURED))


def _granted(batch: int | None, update: Update) -> int:
    size = batch or update.batch_size
    if size is None:
        raise UnsumError("The update does not record its batch size; say how many samples it is of (--batch).")
    return size
