"""Run one audited round: a client trains on private photos, the server attacks its update, the result is scored."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

from unsum.audit.leakage import leakages
from unsum.audit.result import Audit, Setting
from unsum.client import capture
from unsum.client.capture import in_mode
from unsum.data import Batch, embedded_batch, tags
from unsum.defend import Defense
from unsum.errors import UnsumError
from unsum.head import collect_features, find_head
from unsum.invert.refine import Mode
from unsum.models import DEFAULT_MODEL, load_model
from unsum.recipe import AUTO, check_recipe
from unsum.recipe import attack as run_attack
from unsum.score import score, score_samples
from unsum.version import __version__

Say = Callable[[str], None]


def audit(
    model: nn.Module | str = DEFAULT_MODEL,
    data: tuple[Tensor, Tensor] | Batch | None = None,
    *,
    weights: str | Path | None = None,
    batch: int = 8,
    same_label: int = 0,
    defenses: Defense | Iterable[Defense] = (),
    attack: str = AUTO,
    label_rule: str | None = None,
    refine: Mode | None = None,
    batch_size_known: bool = False,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    inverse: str | Path | None = None,
    train: bool = True,
    device: torch.device | str | None = None,
    seed: int = 0,
    command: str = "",
    progress: Say | None = None,
    steps: Callable[..., None] | None = None,
) -> Audit:
    """What would one client update of this model give away?

    Args:
        model: `default`, `mlp`, `torchvision:NAME`, `path/to/file.py:factory`, or your own module (then give `data` too).
        weights: a `.safetensors` or `.pt` state dict for a model given by name.
        data: the client's private (images, targets); the embedded photos by default.
        batch, same_label: how many embedded photos, and how many of them share one label.
        defenses: applied to the update before the server sees it.
        attack: `auto` or the name of a separator; the attacker is given the model and the update, nothing else.
        label_rule: a rule that finds the labels first; without one the attack finds them in its own way.
        refine: a mode that refines the inverse's pictures, as in `attack`.
        batch_size_known, auxiliary: grant the attacker the batch size, or labelled samples of its own, which some label
            rules need; the result says so.
        inverse: an inverse that `unsum train-inverse` made for this backbone, for pictures.
        train: the client's BatchNorm mode.
        progress: called with a sentence when a new stage begins.
        steps: called as `steps(step, *losses)` by attacks that iterate.

    Returns:
        An `Audit`; `audit.write("folder")` makes the report.
    """
    start = time.perf_counter()
    say = progress or (lambda _sentence: None)
    say("Loading the model and the client's photos")
    check_recipe(attack, label_rule, refine)  # before the client computes anything
    chosen = torch.device(device or "cpu")
    name, network, truth = prepare(model, weights, data, batch, same_label, seed)
    network = network.to(chosen)
    images = truth.images.to(chosen)
    chain = [defenses] if isinstance(defenses, Defense) else list(defenses)

    say("The client computes its update")
    torch.manual_seed(seed)
    update = capture(network, images, truth.targets.to(chosen), train=train, defenses=chain)
    with in_mode(network, train):  # how clients train is the server's own protocol
        leak = run_attack(
            network,
            update,
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

    say("Comparing with the truth")
    torch.manual_seed(seed)  # dropout must fall as it fell in the client's own pass
    with in_mode(network, train):
        features = collect_features(network, images)
    compared = (images, truth.targets, features)
    samples = score_samples(leak, *compared)
    return Audit(
        Setting(
            model=name,
            batch_size=len(images),
            classes=leak.targets.shape[1],
            mode="train" if train else "eval",
            defenses=" | ".join(repr(step) for step in chain) or "none",
            attack=leak.method if label_rule is None else f"{leak.method}, labels by {label_rule}",
            seed=seed,
            device=_device_name(chosen),
            command=command,
            versions={
                "unsum": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "torchvision": torchvision.__version__,
            },
        ),
        truth,
        leak,
        samples,
        score(leak, *compared),
        time.perf_counter() - start,
        leakages(samples, images, features),
    )


def prepare(
    model: nn.Module | str,
    weights: str | Path | None,
    data: tuple[Tensor, Tensor] | Batch | None,
    batch: int,
    same_label: int,
    seed: int,
) -> tuple[str, nn.Module, Batch]:
    """The model's name in reports, the model itself, and the client's batch."""
    if isinstance(model, str):
        classes = len(tags()) if data is None else _classes(data)
        loaded = load_model(model, classes=classes, seed=seed, weights=weights)
        name, network, size = loaded.name, loaded.model, loaded.image_size
        if data is None:
            return name, network, embedded_batch(batch, image_size=size, same_label=same_label)
    else:
        name, network = type(model).__name__, model
        if weights is not None:
            raise UnsumError("Load the weights into your own model yourself; `weights` is for models given by name.")
        if data is None:
            raise UnsumError(
                "Give data=(images, targets) along with your own model; the embedded photos may not fit it."
            )
    return name, network, data if isinstance(data, Batch) else _named(data, find_head(network)[1].out_features)


def _classes(data: tuple[Tensor, Tensor] | Batch) -> int:
    targets = data.targets if isinstance(data, Batch) else data[1]
    return targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1


def _named(data: tuple[Tensor, Tensor], classes: int) -> Batch:
    images, targets = data
    titles = [f"sample {i + 1}" for i in range(len(images))]
    return Batch(images, targets, titles, [f"class {c}" for c in range(classes)])


def _device_name(device: torch.device) -> str:
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type}, {torch.get_num_threads()} threads"
    )
