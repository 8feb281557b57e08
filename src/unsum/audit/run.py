"""Run one audited round: a client trains on private photos, the server attacks its update, the result is scored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from unsum.active import modify, place
from unsum.attack.pictures import Inverses
from unsum.attack.recipe import AUTO, check_recipe
from unsum.attack.recipe import attack as run_attack
from unsum.audit.captured import audit_captured
from unsum.audit.comparison import LITTLE
from unsum.audit.leakage import leakages
from unsum.audit.result import Audit, Setting
from unsum.audit.setting import device_name, versions
from unsum.client.capture import capture_trained, in_mode
from unsum.client.step import Stage, ordered
from unsum.data import Batch, class_names_of, client_batch, embedded_batch, open_data, tags
from unsum.defend import Defense
from unsum.errors import UnsumError
from unsum.head import collect_features, find_head
from unsum.invert.refine import Mode
from unsum.models import DEFAULT_MODEL, load_model
from unsum.models.built import USUAL_SIZE
from unsum.models.received import Received
from unsum.score import score, score_samples
from unsum.update import Update

Data = tuple[Tensor, Tensor] | Batch | str | Path
USUAL_BATCH = 8
Say = Callable[[str], None]


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
    progress: Say | None = None,
    steps: Callable[..., None] | None = None,
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
        progress: called with a sentence when a new stage begins.
        steps: called as `steps(step, *losses)` by attacks that iterate.

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
    say = progress or (lambda _sentence: None)
    say("Loading the model and " + ("the client's photos" if update is None else "the update"))
    check_recipe(attack, label_rule, refine)  # before the client computes anything
    chosen = torch.device(device or "cpu")
    if update is not None:
        if data is not None or tuple(defenses if not isinstance(defenses, Defense) else (defenses,)):
            raise UnsumError("An update that was captured is attacked as it is; leave data and defenses out.")
        if server is not None:
            raise UnsumError(
                "A server can change the model only before the client trains; leave the captured update out."
            )
        name, network, received = receive(model, update, weights, classes, seed, download)
        return audit_captured(
            name,
            network,
            received,
            attack=attack,
            label_rule=label_rule,
            batch_size=_granted(batch, received) if batch_size_known else None,
            auxiliary=auxiliary,
            inverse=inverse,
            refine=refine,
            train=train,
            device=chosen,
            seed=seed,
            command=command,
            say=say,
            steps=steps,
        )
    name, network, truth = prepare(
        model,
        weights,
        data,
        USUAL_BATCH if batch is None else batch,
        same_label,
        seed,
        classes=classes,
        download=download,
    )
    network = network.to(chosen)
    images = truth.images.to(chosen)
    recipe = None
    if server is not None:
        network, recipe = modify(network, server, shape=tuple(images.shape[1:]), seed=seed)
        name = f"{name}, changed by the server ({recipe.name}: {recipe.summary})"
    chain = [defenses] if isinstance(defenses, Defense) else list(defenses)

    say("The client computes its update")
    torch.manual_seed(seed)
    own = truth
    sent, images, targets = capture_trained(network, images, truth.targets.to(chosen), train=train, defenses=chain)
    truth, trained_on = _as_trained(truth, images, targets, chain)
    with in_mode(network, train):  # how clients train is the server's own protocol
        leak = run_attack(
            network,
            sent,
            attack,
            batch_size=len(images) if batch_size_known else None,
            label_rule=label_rule,
            auxiliary=auxiliary,
            inverse=inverse,
            refine=refine,
            device=chosen,
            seed=seed,
            progress=say,
            steps=steps,
        )
        if recipe is not None:
            say("Reading the layer that the server put in")
            leak = place(network, leak, recipe, recipe.read(sent))

    say("Comparing with the truth")
    torch.manual_seed(seed)  # dropout must fall as it fell in the client's own pass
    with in_mode(network, train):
        features = collect_features(network, images)
    compared = (images, truth.targets, features)
    samples = score_samples(leak, *compared)
    result = Audit(
        Setting(
            model=name,
            batch_size=len(images),
            classes=leak.targets.shape[1],
            mode="train" if train else "eval",
            defenses=" | ".join(repr(step) for step in chain) or "none",
            attack=leak.method if label_rule is None else f"{leak.method}, labels by {label_rule}",
            seed=seed,
            device=device_name(chosen),
            command=command,
            versions=versions(),
        ),
        truth,
        leak,
        samples,
        score(leak, *compared),
        time.perf_counter() - start,
        leakages(samples, images, features, pixels_alone=leak.pictures_first),
        trained_on=trained_on,
    )
    from unsum.audit.compare import compare as under_others  # here, because that runs audits itself

    comparison = under_others(
        result,
        network,
        own,
        chain,
        wanted=compare,
        slow=leak.seconds > LITTLE,
        train=train,
        device=chosen,
        seed=seed,
        say=say,
        attack=attack,
        label_rule=label_rule,
        batch_size_known=batch_size_known,
        auxiliary=auxiliary,
        inverse=inverse,
        refine=refine,
    )
    return replace(result, comparison=comparison, seconds=time.perf_counter() - start)


def _as_trained(truth: Batch, images: Tensor, targets: Tensor, chain: list[Defense]) -> tuple[Batch, str]:
    """The batch that the gradient was computed on, and a sentence where a defense mixed the client's samples into it."""
    trained = replace(truth, images=images.cpu(), targets=targets.cpu())
    if torch.equal(trained.images, truth.images.cpu()):
        return trained, ""
    mixers = " | ".join(repr(part) for part in ordered(chain) if getattr(part, "stage", None) == Stage.BATCH)
    return trained, (
        f"{mixers} blends the client's samples before it trains on them. What came back is compared with these blends, not with "
        "single samples: each stands under the name of one of its two samples and the larger of its two labels."
    )


def prepare(
    model: nn.Module | str,
    weights: str | Path | None,
    data: Data | None,
    batch: int,
    same_label: int,
    seed: int,
    *,
    classes: int | None = None,
    download: bool = False,
) -> tuple[str, nn.Module, Batch]:
    """The model's name in reports, the model itself, and the client's batch."""
    source = open_data(data) if isinstance(data, str | Path) else None
    if isinstance(model, str):
        if source is not None:
            needed = len(class_names_of(source))
        elif data is None:
            needed = len(tags())
        else:
            assert not isinstance(data, str | Path)
            needed = _classes(data)
        if classes is not None and classes < needed:
            raise UnsumError(f"The data have {needed} classes; a model of {classes} cannot learn them.")
        loaded = load_model(model, classes=classes or needed, seed=seed, weights=weights, download=download)
        name, network, size = loaded.name, loaded.model, loaded.image_size
    else:
        name, network, size = type(model).__name__, model, getattr(model, "image_size", USUAL_SIZE)
        if weights is not None:
            raise UnsumError("Load the weights into your own model yourself; `weights` is for models given by name.")
        if data is None:
            raise UnsumError(
                "Give data=(images, targets) along with your own model; the embedded photos may not fit it."
            )
    if data is None:
        truth = embedded_batch(batch, image_size=size, same_label=same_label)
    elif source is not None:
        truth = client_batch(source, batch, image_size=size, same_label=same_label, seed=seed)
    else:
        assert not isinstance(data, str | Path)
        truth = data if isinstance(data, Batch) else _named(data)
    return name, network, _all_named(truth, find_head(network)[1].out_features)


def receive(
    model: nn.Module | str,
    update: Update | Received | str | Path,
    weights: str | Path | None,
    classes: int | None,
    seed: int,
    download: bool,
) -> tuple[str, nn.Module, Update]:
    """The model's name in reports, the model itself, and the update under the model's names."""
    files = Received(update=Path(update)) if isinstance(update, str | Path) else update
    if isinstance(model, str):
        if isinstance(files, Received):
            loaded, received = files.open(model, weights=weights, classes=classes, seed=seed, download=download)
            return loaded.name, loaded.model, received
        raise UnsumError("Give the model itself along with an Update, or the update's file along with a model's name.")
    if weights is not None:
        raise UnsumError("Load the weights into your own model yourself; `weights` is for models given by name.")
    name = type(model).__name__
    return name, model, files if isinstance(files, Update) else files.read(model)


def _granted(batch: int | None, update: Update) -> int:
    size = batch or update.batch_size
    if size is None:
        raise UnsumError("The update does not record its batch size; say how many samples it is of (--batch).")
    return size


def _classes(data: tuple[Tensor, Tensor] | Batch) -> int:
    if isinstance(data, Batch):
        return max(len(data.class_names), _count(data.targets))
    return _count(data[1])


def _count(targets: Tensor) -> int:
    return targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1


def _named(data: tuple[Tensor, Tensor]) -> Batch:
    images, targets = data
    return Batch(images, targets, [f"sample {i + 1}" for i in range(len(images))], [])


def _all_named(batch: Batch, classes: int) -> Batch:
    """The model may have more classes than the data name, and an attack may find any of them."""
    further = [f"class {c}" for c in range(len(batch.class_names), classes)]
    return replace(batch, class_names=[*batch.class_names, *further])
