"""Update: what a server sees from one client, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unsum.batch_statistics import BatchStatistics, read_statistics
from unsum.errors import UnsumError, check_name, nearest, shown
from unsum.files.naming import named_as
from unsum.files.tensor_file import read_header, read_tensors
from unsum.files.writing import save_tensors, write_whole
from unsum.local_training import LocalTraining
from unsum.running.declared import check_positive, check_whole

Kind = Literal["gradient", "delta"]
Reduction = Literal["mean", "sum"]
_FORMAT = "unsum-update"
# before a layer's name: no parameter's name holds a slash
_MEAN, _VARIANCE = "batch-mean/", "batch-variance/"
# sums of squares of larger values do not fit into float64 either
_LARGEST = torch.finfo(torch.float32).max
_RECORDED = ("kind", "learning_rate", "reduction", "batch_size", "num_examples", "training")


@dataclass(frozen=True)
class Carried:
    """What a momentum had carried over from the round before, and `unsum.without_momentum` took
    off; `sent` is what was sent."""

    momentum: float
    found: bool  # in the two updates; else declared
    sent: Mapping[str, Tensor]

    @property
    def note(self) -> str:
        how = "was found in it" if self.found else "is declared"
        return (
            f"A momentum of {self.momentum:g} {how}, which carries the update before on; that was "
            "taken off first."
        )


@dataclass(frozen=True)
class Update:
    """One client's update, as gradients keyed like `model.named_parameters()`.

    A weight delta (`after − before`) is held as the gradient it came from: divided by −learning
    rate, or only negated when the rate is unknown, which leaves the gradient's scale open
    (`scale_known` says so).

    `batch_size`, `num_examples` and `training`, how the client trains, are set only where the
    protocol discloses them to the server; with several local steps `learning_rate` is what the
    delta was divided by. `statistics` are the batch's own, where the client sent BatchNorm's
    buffers along. `notes` says in sentences what had to be assumed to read the update; neither it
    nor `carried`, what a momentum had added, is saved.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update.from_delta({"weight": torch.tensor([-0.2])}, learning_rate=0.1)
        >>> update.gradients["weight"], update.scale_known
        (tensor([2.]), True)
    """

    gradients: Mapping[str, Tensor]
    kind: Kind = "gradient"
    learning_rate: float | None = None
    reduction: Reduction = "mean"
    batch_size: int | None = None
    num_examples: int | None = None
    notes: tuple[str, ...] = ()
    training: LocalTraining | None = None
    carried: Carried | None = None
    statistics: BatchStatistics = field(default_factory=BatchStatistics)

    def __post_init__(self) -> None:
        if not self.gradients:
            raise UnsumError("The update holds no tensors; capture it again or check the file.")
        check_name("kind of update", str(self.kind), ["gradient", "delta"])
        check_name("loss reduction", str(self.reduction), ["mean", "sum"])
        if self.learning_rate is not None:
            check_positive("The learning rate", self.learning_rate)
        for name in ("batch_size", "num_examples"):
            if getattr(self, name) is not None:
                check_whole(f"The update's {name}", getattr(self, name))

    def __repr__(self) -> str:
        size = sum(g.numel() for g in self.gradients.values())
        return f"Update({len(self.gradients)} tensors, {size:,} values, kind={self.kind!r})"

    @classmethod
    def from_delta(
        cls, delta: Mapping[str, Tensor], learning_rate: float | None = None, **metadata: Any
    ) -> Update:
        """The update behind a weight delta of one step of plain gradient descent: delta =
        −learning_rate · gradient."""
        if learning_rate is not None:
            check_positive("The learning rate", learning_rate)
        factor = -1.0 / (learning_rate or 1.0)
        gradients = {name: tensor * factor for name, tensor in delta.items()}
        return cls(gradients, kind="delta", learning_rate=learning_rate, **metadata)

    def of_training(self, training: LocalTraining, start: Mapping[str, Tensor]) -> Update:
        """The same delta with how the client trains disclosed; it started from the weights `start`.

        With T local steps the delta is −learning_rate Σ_t (g_t + λ w_t), and the update holds the
        mean of the g_t: divided by T, and without the decay λ of the first weights.
        """
        if self.kind != "delta":
            raise UnsumError(
                "Local training is declared of a change of weights, and the update holds a "
                "gradient."
            )
        steps, decay = training.steps or 1, training.weight_decay
        share = 1 / steps if training.learning_rate is not None else 1.0
        gradients = {
            name: g * share - decay * start[name] if decay else g * share
            for name, g in self.gradients.items()
        }
        rate = None if training.learning_rate is None else training.learning_rate * steps
        several = (
            f"The client took {steps} local steps; the update holds the mean of their gradients."
        )
        notes = (*self.notes, several) if steps > 1 else self.notes
        return replace(
            self, gradients=gradients, learning_rate=rate, notes=notes, training=training
        )

    @property
    def scale_known(self) -> bool:
        """False when the gradient is known only up to a positive factor (a delta of unknown
        learning rate)."""
        return self.kind == "gradient" or self.learning_rate is not None

    def map(self, function: Any) -> Update:
        """The same update with `function(name, tensor)` in place of every tensor."""
        return replace(
            self, gradients={name: function(name, g) for name, g in self.gradients.items()}
        )

    def validate(self, model: nn.Module) -> None:
        """Refuse what does not fit `model` or is not finite, naming the first tensor that is
        wrong."""
        parameters = dict(model.named_parameters())
        for name, gradient in self.gradients.items():
            if name not in parameters:
                raise UnsumError(
                    f"The update does not fit the model: the model has no parameter {shown(name)}; "
                    f"{nearest(name[:200], parameters)}pass the model that the client trained."
                )
            expected, found = tuple(parameters[name].shape), tuple(gradient.shape)
            if expected != found:
                raise UnsumError(
                    f"The update does not fit the model: {shown(name)} has shape {shown(found)} in "
                    f"the update and {expected} in the model; pass the model that the client "
                    "trained."
                )
            if not gradient.is_floating_point():
                raise UnsumError(
                    f"The update's {shown(name)} holds {gradient.dtype}; gradients must be "
                    "floating point."
                )
            size = _largest(gradient)
            if not size < math.inf:
                raise UnsumError(
                    f"The update's {shown(name)} holds NaN or Inf; a server would drop it, and so "
                    "does unsum."
                )
            if size > _LARGEST:
                raise UnsumError(
                    f"The update's {shown(name)} holds values of {size:.0e}, which no training in "
                    "float32 makes; a server would drop it, and so does unsum."
                )

        self._validate_statistics(model)

    def _validate_statistics(self, model: nn.Module) -> None:
        modules, sent = dict(model.named_modules()), self.statistics
        for layer in sent.means.keys() | sent.variances.keys():
            own = getattr(modules.get(layer), "running_mean", None)
            values = [sent.means.get(layer), sent.variances.get(layer)]
            fits = isinstance(own, Tensor) and all(
                v is not None and v.shape == own.shape for v in values
            )
            if not fits or not all(v is not None and bool(v.isfinite().all()) for v in values):
                raise UnsumError(
                    f"The batch statistics of {shown(layer)} do not fit the model; pass the model "
                    "that the client trained."
                )

    def save(self, path: str | Path) -> None:
        """Write safetensors with the metadata as JSON in its header."""
        path = Path(path)
        if path.suffix != ".safetensors":
            raise UnsumError(
                f"Updates are saved as .safetensors; rename {path.name!r} accordingly."
            )
        metadata = {name: getattr(self, name) for name in _RECORDED if name != "training"}
        if self.training is not None:
            metadata["training"] = vars(self.training)
        sent = self.statistics
        tensors = {name: g.detach().cpu().contiguous() for name, g in self.gradients.items()}
        for prefix, values in ((_MEAN, sent.means), (_VARIANCE, sent.variances)):
            tensors |= {
                prefix + layer: value.detach().cpu().contiguous() for layer, value in values.items()
            }
        write_whole(path, lambda part: save_tensors(tensors, part, {_FORMAT: json.dumps(metadata)}))

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: nn.Module | None = None,
        kind: Kind | None = None,
        learning_rate: float | None = None,
    ) -> Update:
        """Read an update from `.safetensors`, `.npz`, a `.pt`/`.pth` state dict, a Flower record
        (`.pb`) or `.npy` files.

        Files written by `save` carry their own metadata. For any other file, `kind` says whether it
        holds gradients (the default) or weight deltas. Nothing in the file is ever executed.

        Args:
            model: matches the tensors to the model's parameters, by name or else by order and shape
                (`notes` says so).
        """
        path = Path(path)
        file = read_tensors(path, "update")
        header = file.metadata.get(_FORMAT)
        if header is not None and (kind is not None or learning_rate is not None):
            raise UnsumError(
                f"{path.name!r} records its own kind and learning rate; leave both out."
            )
        statistics, tensors = (
            (BatchStatistics(), file.tensors) if header is None else _parted(file.tensors)
        )
        tensors, notes = (
            (tensors, []) if model is None else named_as(model, tensors, ordered=file.ordered)
        )
        if header is not None:
            return replace(_recorded(path, header, tensors, notes), statistics=statistics)
        if kind == "delta":
            return cls.from_delta(tensors, learning_rate, notes=tuple(notes))
        return cls(
            tensors, kind=kind or "gradient", learning_rate=learning_rate, notes=tuple(notes)
        )

    @classmethod
    def between(
        cls,
        before: str | Path,
        after: str | Path,
        *,
        model: nn.Module | None = None,
        learning_rate: float | None = None,
        steps: int | None = None,
        training: LocalTraining | None = None,
    ) -> Update:
        """The update behind two checkpoints: what the server sent out, and what the client sent
        back.

        `learning_rate` and `steps` are declared, or the whole `training`, as `of_training` takes
        it.
        """
        if training is None and steps is not None:
            training = LocalTraining(learning_rate, steps)
        files = [read_tensors(Path(path), "checkpoint") for path in (before, after)]
        first, second = (file.tensors for file in files)
        _check_alike(Path(before), Path(after), first, second)
        delta = {
            name: second[name].to(t.dtype) - t for name, t in first.items() if t.is_floating_point()
        }
        start, notes = first, list[str]()
        if model is not None:
            # counters keep their places
            whole = {name: delta.get(name, tensor) for name, tensor in first.items()}
            ordered = files[0].ordered and files[1].ordered
            (delta, notes), (start, _) = (
                named_as(model, part, ordered=ordered) for part in (whole, first)
            )
        rate = learning_rate if training is None else training.learning_rate
        sent = (
            BatchStatistics()
            if model is None
            else read_statistics(model, files[0].tensors, files[1].tensors)
        )
        update = cls.from_delta(delta, rate, notes=tuple(notes), statistics=sent)
        return update if training is None else update.of_training(training, start)


def _largest(tensor: Tensor) -> float:
    """The largest size of an entry, NaN where one is; without a temporary as large as the
    tensor."""
    if tensor.numel() == 0:
        return 0.0
    low, high = (float(extreme) for extreme in torch.aminmax(tensor))
    return max(-low, high)


def _parted(tensors: dict[str, Tensor]) -> tuple[BatchStatistics, dict[str, Tensor]]:
    """What `save` wrote, as the batch's statistics and everything else."""
    means, variances = (
        {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        for prefix in (_MEAN, _VARIANCE)
    )
    rest = {name: t for name, t in tensors.items() if not name.startswith((_MEAN, _VARIANCE))}
    layers = tuple(means.keys() & variances.keys())
    return BatchStatistics(layers, 1 if layers else None, means, variances), rest


def _recorded(path: Path, header: str, tensors: dict[str, Tensor], notes: list[str]) -> Update:
    """An update that `save` wrote, with the metadata of its header."""
    try:
        metadata = read_header(header, set(_RECORDED))
        if metadata.get("training") is not None:
            metadata["training"] = LocalTraining(**metadata["training"])
        return Update(tensors, notes=tuple(notes), **metadata)
    except UnsumError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise UnsumError(
            f"{path.name!r} cannot be read as .safetensors: its metadata is damaged."
        ) from error


def _check_alike(
    before: Path, after: Path, first: dict[str, Tensor], second: dict[str, Tensor]
) -> None:
    """Two checkpoints of one model hold the same names and shapes."""
    odd = next(iter(first.keys() ^ second.keys()), None)
    if odd is not None:
        where = before if odd in first else after
        raise UnsumError(
            f"The checkpoints are not of one model: {shown(odd)} stands only in {where.name!r}."
        )
    odd = next((name for name in first if first[name].shape != second[name].shape), None)
    if odd is not None:
        shapes = f"{tuple(first[odd].shape)} and {tuple(second[odd].shape)}"
        raise UnsumError(
            f"The checkpoints are not of one model: {shown(odd)} has the shapes {shapes}."
        )
