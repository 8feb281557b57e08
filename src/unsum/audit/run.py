"""Audit one round: a client trains on private photos, the server attacks its update, the result is scored."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from unsum.active import modify
from unsum.attack.options import AUTO, AttackOptions
from unsum.attack.pictures import Inverses
from unsum.audit.bounds import NEEDS_SAMPLES, NOT_PROVEN, SHORT, Bounds
from unsum.audit.compare import CAPTURED, Comparison
from unsum.audit.compare import compare as under_others
from unsum.audit.inputs import Data, Inputs, simulated_training
from unsum.audit.leakage import DEFAULT_LEVEL, Tried
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
from unsum.data.table_file import is_table
from unsum.data.texts import TextData
from unsum.defend import Defense
from unsum.errors import NoHeadError, UnsumError
from unsum.invert.refine import Mode
from unsum.losses import Loss
from unsum.models import DEFAULT_MODEL, LoadedModel
from unsum.models.received import Received
from unsum.network.loss_function import LossFunction
from unsum.progress import SILENT, Progress
from unsum.score import summarize
from unsum.update import Update
from unsum.watching import shown_in_notebooks

_BUFFERS = (
    "The round was not played again under other defenses: they change gradients, and leave the buffers as they are."
)
_UNKNOWN = "unknown: the update was captured elsewhere"


@shown_in_notebooks
def audit(
    model: nn.Module | str = DEFAULT_MODEL,
    data: Data | TextData | None = None,
    *,
    update: Update | Received | str | Path | None = None,
    weights: str | Path | None = None,
    classes: int | None = None,
    classes_from: str | Path | None = None,
    fresh_head: bool = False,
    image_size: int | None = None,
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
    buffers: bool = False,
    loss: str | Loss | LossFunction | None = None,
    learning_rate: float | None = None,
    local_steps: int | None = None,
    epochs: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    target: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    time_limit: float | None = None,
    compare: bool | None = False,
    prove_below: float | None = None,
    ceiling: bool = True,
    device: torch.device | str | None = None,
    seed: int = 0,
    command: str = "",
    progress: Progress = SILENT,
) -> Audit:
    """What would one client update of this model give away, or what does one give away that was captured?

    Leakage of a sample x is 1 − ‖x̂ − x‖² / ‖m − x‖², with m the best guess that needs no update (public data, or
    the mean of the client's other samples where they differ).

    Args:
        model: a name, as `unsum.models.load_model` takes it (`default`, `torchvision:NAME`, `path/to/file.py:factory`, …), or
            your own module (then give `data` or `update` too).
        weights: a `.safetensors`, `.pt` or `.npz` state dict for a model given by name.
        data: the client's private (images, targets), or where they lie: a folder, tar or npz, `torchvision:NAME:ROOT`, `hf:PATH`;
            the embedded photos by default. A table is a .csv, .tsv or .parquet file, with its `target`. For a language model:
            (n, L) token numbers, a list of texts, or a file with one text a line.
        update: what a server received, instead of `data`: an `Update`, its file, or `Received(before=…, after=…)`. There is no
            truth then, and the result holds what the attack itself vouches for.
        classes: of the model; by default as many as the data, the update or the head of trained weights have.
        classes_from: the names of a trained head's classes in its order, where the data have others or fewer: a file with one
            name a line, or the folder that the model was trained on.
        fresh_head: put a new head on trained weights; without it their own stays.
        image_size: the side of the photos; by default what the model says or, by trying, takes, the data's own size first.
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
        buffers: the client sends BatchNorm's running statistics along, as a whole state dict has them.
        loss: what the client minimizes, if not cross-entropy: `bce` (rows of several labels, or one output for yes and no),
            `mse`, `focal:GAMMA`, or an object of `unsum.losses`; the attacker is told. A function of what any network
            returns and of targets of any kind is one too; then what applies to such a network is tried.
        learning_rate, local_steps, epochs, momentum, weight_decay: let the client take several steps of SGD and send the change
            of its weights, as in FedAvg; `local_steps` counts those of all epochs together (one an epoch by default), over
            equal parts of the batch, and the rate is 0.01 unless said. A server sets all that, so the attacker is told.
        target, columns: of a table, the column that the model predicts, and what other columns are where that shall not be
            guessed: `"zip=category,id=skip"`, or a mapping (`number`, `category`, `skip`).
        time_limit: seconds for the attack, as in `attack`, 60 by default and `math.inf` for as long as it takes; other defenses
            that are compared have as long, each.
        prove_below: the level that ceilings are decided against, 0.2 by default; `audit.gate(prove_below=…)` holds
            them against it.
        ceiling: bound what any attacker can read, too; False leaves that out, and then nothing is called protected.
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
    progress.say("Loading the model and " + ("the client's samples" if update is None else "the update"))
    own_loss = loss if callable(loss) and not isinstance(loss, Loss) else None
    loss = None if own_loss is not None else cast("str | Loss | None", loss)
    options = AttackOptions(
        attack,
        batch_size_known=batch_size_known,
        label_rule=label_rule,
        auxiliary=auxiliary,
        inverse=inverse,
        refine=refine,
        loss=loss,
        time_limit=time_limit,
        device=torch.device(device or "cpu"),
        seed=seed,
    )
    options.check()  # before the client computes anything
    training = simulated_training(learning_rate, local_steps, epochs, momentum, weight_decay)
    inputs = Inputs(
        model, data, update, weights, classes, download, batch, same_label, seed,
        image_size, classes_from, fresh_head, target, columns, loss,
    )  # fmt: skip
    chain = [defenses] if isinstance(defenses, Defense) else list(defenses)
    if buffers and (update is not None or training is not None or is_text(model)):
        raise UnsumError(
            "Buffers are sent along by a client that is simulated and takes one step on photos; leave buffers (--buffers) out."
        )
    if update is not None:
        if data is not None or chain:
            raise UnsumError("An update that was captured is attacked as it is; leave data and defenses out.")
        if training is not None:
            raise UnsumError(
                "An update that was captured says how its client trained (Received(steps=…), Update.of_training); "
                "leave the local training out."
            )
        if server is not None:
            raise UnsumError(
                "A server can change the model only before the client trains; leave the captured update out."
            )
        return _audit_captured(inputs, options, train=train, command=command, progress=progress)
    if not is_table(data) and is_text(model):
        if server is not None or training is not None or loss is not None:
            raise UnsumError("A client's text is played as one plain step; leave server, loss and local training out.")
        return audit_text(
            inputs, chain, options, train=train, command=command, progress=progress, proving=ceiling, level=prove_below
        )
    how_other: dict[str, Any] = {"train": train, "command": command, "progress": progress}
    how_other |= {"proving": ceiling, "level": DEFAULT_LEVEL if prove_below is None else prove_below}
    other = functools.partial(audit_other, inputs, own_loss, chain, options, **how_other)
    plain = not (buffers or training or server)
    if plain and (own_loss is not None or is_annotated(data)):
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
    bench = Bench(network, own, options, train, training, reader, buffers, progress=progress)
    weights_sent = fingerprint(network.state_dict())
    played = play(bench, chain, progress)
    leak, told = played.leak, dict(vars(played))
    sent = told.pop("update")
    steps = 1 if training is None else training.steps or 1
    privacy = promised(chain, steps=steps, tensors=len(sent.gradients), buffers=buffers)
    made = Provenance.of(model=weights_sent, data=samples_of(own), update=sent.gradients, privacy=privacy)
    bounds = Bounds.of(bench, level=DEFAULT_LEVEL if prove_below is None else prove_below, progress=progress)
    bound = None
    if ceiling:
        progress.say("Playing the client in two worlds: what nobody can exceed")
        bound = bounds(chain)
    rows = Bounds.of(bench, seconds=SHORT, together=True) if ceiling else None
    how: dict[str, Any] = {"train": train, "training": training, "defenses": shown(chain), "command": command}
    return Audit(
        Setting.of(name, leak, options, samples=len(own.images), provenance=made, **how),
        scores=summarize(leak, played.samples),
        comparison=Comparison(absent=_BUFFERS) if buffers else under_others(played, bench, chain, compare, rows, bound),
        seconds=time.perf_counter() - start,
        depth=DepthRead.of(network, leak),
        bound=bound,
        unbounded=bounds.absent if ceiling else NOT_PROVEN,
        **told,
    )


def _audit_captured(inputs: Inputs, options: AttackOptions, *, train: bool, command: str, progress: Progress) -> Audit:
    """Attack an update that came without the truth, and report what the attack itself vouches for."""
    start = time.perf_counter()
    loaded, update = inputs.captured()
    names = inputs.class_names(loaded.model)
    options = _of_size(inputs, update, options)
    how: dict[str, Any] = {"train": train, "command": command, "progress": progress, "start": start}
    return _without_truth(inputs, loaded, update, options, names, defenses=_UNKNOWN, absent=CAPTURED, **how)


def _of_size(inputs: Inputs, update: Update, options: AttackOptions) -> AttackOptions:
    if options.batch_size_known:
        size = inputs.batch or update.batch_size
        if size is None:
            raise UnsumError("The update does not record its batch size; say how many samples it is of (--batch).")
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
    how: dict[str, Any] = {"train": train, "defenses": defenses, "command": command, "training": update.training}
    return Audit(
        Setting.of(loaded.name, leak, options, samples=leak.batch_size, provenance=made, **how),
        *(None, leak, [], {}, time.perf_counter() - start),
        comparison=Comparison(absent=absent),
        tried=[Tried.of(attempt, []) for attempt in leak.tried],
        undecided=without_head(network) or leak.undecided,
        depth=DepthRead.of(network, leak),
        unbounded=NEEDS_SAMPLES,
        class_names=names,
        texts=None if texts is None else Texts([], texts),
    )
