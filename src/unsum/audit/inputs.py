"""What is audited: a model and a client's batch for a round to be played, or a model and an update that was captured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from unsum.data import Batch, class_names_of, client_batch, embedded_batch, open_data, tags
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.models import load_model
from unsum.models.built import USUAL_SIZE
from unsum.models.load import LoadedModel
from unsum.models.received import Received
from unsum.update import Update

Data = tuple[Tensor, Tensor] | Batch | str | Path
USUAL_BATCH = 8


def prepare(
    model: nn.Module | str,
    data: Data | None,
    *,
    weights: str | Path | None = None,
    batch: int | None = None,
    same_label: int = 0,
    classes: int | None = None,
    download: bool = False,
    seed: int = 0,
) -> tuple[LoadedModel, Batch]:
    """The model with its name in reports, and the client's batch, of `USUAL_BATCH` samples unless told otherwise."""
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
    else:
        loaded = own_model(model, weights)
        if data is None:
            raise UnsumError(
                "Give data=(images, targets) along with your own model; the embedded photos may not fit it."
            )
    count, side = USUAL_BATCH if batch is None else batch, loaded.image_size
    if data is None:
        truth = embedded_batch(count, image_size=side, same_label=same_label)
    elif source is not None:
        truth = client_batch(source, count, image_size=side, same_label=same_label, seed=seed)
    else:
        assert not isinstance(data, str | Path)
        truth = data if isinstance(data, Batch) else _named(data)
    return loaded, _all_named(truth, find_head(loaded.model)[1].out_features)


def receive(
    model: nn.Module | str,
    update: Update | Received | str | Path,
    *,
    weights: str | Path | None = None,
    classes: int | None = None,
    download: bool = False,
    seed: int = 0,
) -> tuple[LoadedModel, Update]:
    """The model with its name in reports, and the update under the model's names."""
    files = Received(update=Path(update)) if isinstance(update, str | Path) else update
    if isinstance(model, str):
        if isinstance(files, Received):
            return files.open(model, weights=weights, classes=classes, seed=seed, download=download)
        raise UnsumError("Give the model itself along with an Update, or the update's file along with a model's name.")
    return own_model(model, weights), files if isinstance(files, Update) else files.read(model)


def own_model(model: nn.Module, weights: str | Path | None = None) -> LoadedModel:
    """A module of the user's, under the name of its class."""
    if weights is not None:
        raise UnsumError("Load the weights into your own model yourself; `weights` is for models given by name.")
    return LoadedModel(model, type(model).__name__, int(getattr(model, "image_size", USUAL_SIZE)))


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
