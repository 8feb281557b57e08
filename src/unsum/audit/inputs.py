"""What is audited: a model and a client's batch for a round to be played, or a model and an update that was captured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from unsum.data import Batch, Source, class_names_of, client_batch, embedded_batch, open_data, tags
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.models import DEFAULT_MODEL, load_model
from unsum.models.built import USUAL_SIZE
from unsum.models.load import LoadedModel
from unsum.models.received import Received
from unsum.update import Update

Data = tuple[Tensor, Tensor] | Batch | str | Path
USUAL_BATCH = 8


@dataclass(frozen=True)
class Inputs:
    """As `unsum.audit` takes them: a model, and either the client's data or an update that was captured."""

    model: nn.Module | str = DEFAULT_MODEL
    data: Data | None = None
    update: Update | Received | str | Path | None = None
    weights: str | Path | None = None
    classes: int | None = None
    download: bool = False
    batch: int | None = None
    same_label: int = 0
    seed: int = 0

    def simulated(self) -> tuple[LoadedModel, Batch]:
        """The model with its name in reports, and the client's batch, of `USUAL_BATCH` samples unless told otherwise."""
        data = open_data(self.data) if isinstance(self.data, str | Path) else self.data
        if isinstance(self.model, str):
            loaded = self.named_model(self.model, _classes(data))
        else:
            loaded = own_model(self.model, self.weights)
            if data is None:
                raise UnsumError(
                    "Give data=(images, targets) along with your own model; the embedded photos may not fit it."
                )
        count, side = USUAL_BATCH if self.batch is None else self.batch, loaded.image_size
        if data is None:
            truth = embedded_batch(count, image_size=side, same_label=self.same_label)
        elif isinstance(data, Source):
            truth = client_batch(data, count, image_size=side, same_label=self.same_label, seed=self.seed)
        else:
            truth = data if isinstance(data, Batch) else _named(data)
        return loaded, _all_named(truth, find_head(loaded.model)[1].out_features)

    def captured(self) -> tuple[LoadedModel, Update]:
        """The model with its name in reports, and the update under the model's names."""
        update = Received(update=Path(self.update)) if isinstance(self.update, str | Path) else self.update
        assert update is not None
        if not isinstance(self.model, str):
            return own_model(self.model, self.weights), update if isinstance(update, Update) else update.read(
                self.model
            )
        if isinstance(update, Received):
            return update.open(
                self.model, weights=self.weights, classes=self.classes, seed=self.seed, download=self.download
            )
        raise UnsumError("Give the model itself along with an Update, or the update's file along with a model's name.")

    def named_model(self, name: str, needed: int) -> LoadedModel:
        """With as many classes as asked for, or as needed."""
        if self.classes is not None and self.classes < needed:
            raise UnsumError(f"The data have {needed} classes; a model of {self.classes} cannot learn them.")
        classes = self.classes or needed
        return load_model(name, classes=classes, seed=self.seed, weights=self.weights, download=self.download)


def own_model(model: nn.Module, weights: str | Path | None = None) -> LoadedModel:
    """A module of the user's, under the name of its class."""
    if weights is not None:
        raise UnsumError("Load the weights into your own model yourself; `weights` is for models given by name.")
    return LoadedModel(model, type(model).__name__, int(getattr(model, "image_size", USUAL_SIZE)))


def _classes(data: tuple[Tensor, Tensor] | Batch | Source | None) -> int:
    """How many the data have."""
    if data is None:
        return len(tags())
    if isinstance(data, Source):
        return len(class_names_of(data))
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
