"""What is audited: a model and a client's batch for a round to be played, or a model and an update
that was captured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from unsum.audit.groups import ClientSamples, Loading
from unsum.data import (
    Batch,
    Source,
    class_names_of,
    client_batch,
    embedded_batch,
    open_data,
    own_sides,
    tags,
)
from unsum.data.arrays import as_tensors, open_arrays, some_of
from unsum.data.classes import class_order, fitted, fitting_order
from unsum.data.table_file import is_table
from unsum.data.tables import ClientTable
from unsum.data.texts import TextData
from unsum.errors import UnsumError, first_line
from unsum.gradients import in_eval_mode
from unsum.head import find_head
from unsum.losses import Loss
from unsum.models import DEFAULT_MODEL, load_model
from unsum.models.accepted_size import accepted_size
from unsum.models.built import USUAL_SIZE
from unsum.models.load import LoadedModel
from unsum.models.received import Received
from unsum.models.table_network import embeds, table_network
from unsum.update import Update

# A sequence of mappings, one for each input, is what torchvision's detectors take for targets.
Data = tuple[Tensor, Tensor] | tuple[Any, Any] | Batch | str | Path
Known = tuple[Tensor, Tensor] | Batch | Source


@dataclass(frozen=True)
class Inputs:
    """As `unsum.audit` takes them: a model, and either the client's data or an update that was
    captured."""

    model: nn.Module | str = DEFAULT_MODEL
    data: Data | TextData | None = None
    update: Update | Received | str | Path | None = None
    loading: Loading = field(default_factory=Loading)
    samples: ClientSamples = field(default_factory=ClientSamples)
    loss: str | Loss | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", as_tensors(self.data))

    def simulated(self) -> tuple[LoadedModel, Batch]:
        """The model with its name in reports, and the client's batch, of as many samples as usual
        unless told otherwise."""
        if is_table(self.data):
            return self._table(Path(str(self.data)))
        if self.samples.target is not None or self.samples.columns is not None:
            raise UnsumError(
                "--target and --columns describe a table; give one as --data, a .csv, .tsv or "
                ".parquet file."
            )
        if isinstance(self.data, Tensor | list):
            raise UnsumError(
                "Give the targets, too: data=(inputs, targets). Tokens alone are for language "
                "models."
            )
        data = self._opened()
        if isinstance(data, tuple) and isinstance(data[1], Tensor):
            self._check_classes(data[1])
        order = (
            None
            if self.loading.classes_from is None
            else class_order(Path(self.loading.classes_from))
        )
        count = self.samples.count
        own = (
            own_sides(data, count, same_label=self.samples.same_label, seed=self.seed)
            if isinstance(data, Source)
            else []
        )
        if isinstance(self.model, str):
            loaded = self._named(self.model, data, order, own)
        elif data is None:
            raise UnsumError(
                "Give data=(images, targets) along with your own model; the embedded photos may "
                "not fit it."
            )
        else:
            loaded = own_model(
                self.model,
                self.loading.weights,
                self.loading.image_size,
                own if isinstance(data, Source) else None,
            )
        side, made = loaded.image_size, find_head(loaded.model)[1].out_features
        if data is None:
            other = made if made < len(tags()) or loaded.trained_head else None
            truth = embedded_batch(
                count, image_size=side, same_label=self.samples.same_label, classes=other
            )
        elif isinstance(data, Source):
            data = fitted(data, made, order, trained=loaded.trained_head)
            truth = client_batch(
                data, count, image_size=side, same_label=self.samples.same_label, seed=self.seed
            )
        else:
            truth = (
                data
                if isinstance(data, Batch)
                else Batch(*data, [f"sample {i + 1}" for i in range(len(data[0]))], [])
            )
            _check_taken(loaded.model, truth.images)
        # The model may have more classes than the data name, and an attack may find any of them.
        further = [f"class {c}" for c in range(len(truth.class_names), made)]
        return loaded, replace(truth, class_names=[*truth.class_names, *further])

    def other(self) -> tuple[LoadedModel, Any, Any]:
        """A network that is no classifier with a linear head, with inputs and targets of any
        kind."""
        data = self._opened()
        if data is None:
            raise UnsumError(
                "Give data=(inputs, targets) along with a model that is no classifier of photos."
            )
        own = tuple(data.images.shape[2:]) if isinstance(data, Batch) else ()
        if isinstance(self.model, str):
            loaded = self._named(self.model, data, None, [own[0]] if own else [])
        else:
            loaded = own_model(self.model, self.loading.weights, self.loading.image_size)
        if isinstance(data, Source):
            count = self.samples.count
            side = loaded.image_size or USUAL_SIZE
            data = client_batch(
                data, count, image_size=side, same_label=self.samples.same_label, seed=self.seed
            )
        inputs, targets = (data.images, data.targets) if isinstance(data, Batch) else data
        return loaded, inputs, targets

    def _opened(self) -> Known | None:
        """The client's data; of arrays in a file that are no labeled photos, as many as its batch
        has."""
        if not isinstance(self.data, str | Path):
            return self.data  # type: ignore[return-value]
        arrays = open_arrays(Path(self.data)) if str(self.data).lower().endswith(".npz") else None
        if arrays is None:
            return open_data(self.data)
        return some_of(arrays, self.samples.count, self.seed)

    def _check_classes(self, targets: Tensor) -> None:
        if targets.ndim == 1 and targets.is_floating_point() and self.loss is None:
            raise UnsumError(
                "The targets are numbers and no classes; say what the client minimizes (--loss "
                "mse)."
            )

    def _table(self, path: Path) -> tuple[LoadedModel, Batch]:
        """Rows of a table, and a network for them: with one output where binary cross-entropy tells
        two classes apart."""
        table = ClientTable.open(path, self.samples.target, self.samples.columns)
        dense, coded = table.schema.shape, table.with_embeddings().schema.shape
        classes = len(table.schema.classes)
        if isinstance(self.model, str):
            outputs = 1 if self.loss == "bce" and classes == 2 else classes
            model, name = table_network(
                self.model, dense, coded, outputs, seed=self.seed, weights=self.loading.weights
            )
        else:
            model, name = self.model, type(self.model).__name__
        table = table.with_embeddings() if embeds(model) else table
        model.reads_table = True  # type: ignore[assignment] # travels with the model: its embeddings are no vocabulary
        size = self.samples.count
        batch = table.batch(size, same_label=self.samples.same_label, seed=self.seed)
        if self.loss == "bce" and classes > 2:
            batch = replace(batch, targets=one_hot(batch.targets, classes).float())
        return LoadedModel(model, name, 0), batch

    def captured(self) -> tuple[LoadedModel, Update]:
        """The model with its name in reports, and the update under the model's names."""
        update = (
            Received(update=Path(self.update))
            if isinstance(self.update, str | Path)
            else self.update
        )
        if update is None:
            raise UnsumError(
                "There is no update to attack; give one (update=), or simulate a client's."
            )
        if not isinstance(self.model, str):
            read = update if isinstance(update, Update) else update.read(self.model)
            return own_model(self.model, self.loading.weights, self.loading.image_size), read
        if isinstance(update, Received):
            return update.open(self.model, classes=self.loading.classes, **self._loading)
        raise UnsumError(
            "Give the model itself along with an Update, or the update's file along with a model's "
            "name."
        )

    def class_names(self, model: nn.Module) -> list[str]:
        """What `classes_from` calls the classes of the model's head; nothing where it was not
        given."""
        if self.loading.classes_from is None:
            return []
        return fitting_order(
            class_order(Path(self.loading.classes_from)), find_head(model)[1].out_features
        )

    def _named(
        self, name: str, data: Known | None, order: list[str] | None, own: list[int]
    ) -> LoadedModel:
        """With as many classes as asked for, or as the data have; the embedded photos go with
        fewer, too."""
        needed = len(order) if order is not None else _classes(data)
        if data is not None and self.loading.classes is not None and self.loading.classes < needed:
            raise UnsumError(
                f"The data have {needed} classes; a model of {self.loading.classes} cannot learn "
                "them."
            )
        fewer, classes = (
            data is None and self.loading.classes is None,
            self.loading.classes or needed,
        )
        free = isinstance(data, tuple)  # arrays of the user's own, which need not be photos
        how: dict[str, Any] = {
            "likely_sizes": own,
            "fewer_will_do": fewer or free,
            "any_input": free,
        }
        return load_model(name, classes=classes, **how, **self._loading)

    @property
    def _loading(self) -> dict[str, Any]:
        """How a model is loaded by its name, whatever its classes."""
        same = {name: getattr(self.loading, name) for name in ("weights", "fresh_head", "download")}
        return same | {"size": self.loading.image_size, "seed": self.seed}


def _check_taken(model: nn.Module, inputs: Tensor) -> None:
    """Refuse inputs of a shape that the model was not made for, before its own layers do."""
    if not isinstance(inputs, Tensor) or inputs.ndim < 2 or not inputs.is_floating_point():
        return  # codes, say, of which the next step tells whether they fit
    device = next(model.parameters(), inputs).device
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), in_eval_mode(model):
            model(inputs[:1].to(device))
    except Exception as error:  # the user's own forward; the client's step says what else is wrong
        told = str(error)
        if not isinstance(error, RuntimeError) or ("shape" not in told and "size" not in told):
            return
        shape = " × ".join(map(str, inputs.shape[1:]))
        raise UnsumError(
            f"The model does not take inputs of {shape} numbers ({first_line(error)}); give inputs "
            "of the shape that it reads."
        ) from error


def own_model(
    model: nn.Module,
    weights: str | Path | None = None,
    size: int | None = None,
    likely_sizes: list[int] | None = None,
) -> LoadedModel:
    """A module of the user's, under the name of its class; with `likely_sizes` it is asked which
    photos it takes."""
    if weights is not None:
        raise UnsumError(
            "Load the weights into your own model yourself; `weights` is for models given by name."
        )
    name, side = type(model).__name__, size or getattr(model, "image_size", None)
    if side is None and likely_sizes is not None:
        side = accepted_size(model, likely_sizes, name)
    return LoadedModel(model, name, int(side or USUAL_SIZE))


def _classes(data: Known | None) -> int:
    """How many the data have."""
    if data is None:
        return len(tags())
    if isinstance(data, Source):
        return len(class_names_of(data))
    if isinstance(data, Batch):
        return max(len(data.class_names), _count(data.targets))
    return _count(data[1])


def _count(targets: Any) -> int:
    if not isinstance(targets, Tensor):  # boxes with labels, say: 0 stands for the background there
        return 1 + max((int(one["labels"].max()) for one in targets if "labels" in one), default=0)
    if targets.is_floating_point() and targets.ndim == 1:
        return 1
    return (
        targets.shape[1]
        if targets.ndim == 2 or targets.is_floating_point()
        else int(targets.max()) + 1
    )
