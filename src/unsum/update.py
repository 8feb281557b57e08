"""Update: what a server sees from one client, and nothing else."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from unsum.errors import UnsumError, nearest, unknown_name

Kind = Literal["gradient", "delta"]
Reduction = Literal["mean", "sum"]
_FORMAT = "unsum-update"


@dataclass(frozen=True)
class Update:
    """One client's update, as gradients keyed like `model.named_parameters()`.

    A weight delta (`after − before`) is held as the gradient it came from: divided by −learning rate, or only
    negated when the rate is unknown, which leaves the gradient's scale open (`scale_known` says so).

    `batch_size` and `num_examples` are set only where the protocol discloses them to the server.
    """

    gradients: Mapping[str, Tensor]
    kind: Kind = "gradient"
    learning_rate: float | None = None
    reduction: Reduction = "mean"
    batch_size: int | None = None
    num_examples: int | None = None

    def __post_init__(self) -> None:
        if not self.gradients:
            raise UnsumError("The update holds no tensors; capture it again or check the file.")
        if self.kind not in ("gradient", "delta"):
            raise unknown_name("kind of update", str(self.kind), ["gradient", "delta"])
        if self.reduction not in ("mean", "sum"):
            raise unknown_name("loss reduction", str(self.reduction), ["mean", "sum"])
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise UnsumError(f"The learning rate must be positive, not {self.learning_rate}.")
        for field in ("batch_size", "num_examples"):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UnsumError(f"The update's {field} must be a whole number of at least 1, not {value!r}.")

    def __repr__(self) -> str:
        size = sum(g.numel() for g in self.gradients.values())
        return f"Update({len(self.gradients)} tensors, {size:,} values, kind={self.kind!r})"

    @classmethod
    def from_delta(cls, delta: Mapping[str, Tensor], learning_rate: float | None = None, **metadata: Any) -> Update:
        """The update behind a weight delta of one step of plain gradient descent: delta = −learning_rate · gradient."""
        if learning_rate is not None and not learning_rate > 0:
            raise UnsumError(f"The learning rate must be positive, not {learning_rate}.")
        factor = -1.0 / (learning_rate or 1.0)
        gradients = {name: tensor * factor for name, tensor in delta.items()}
        return cls(gradients, kind="delta", learning_rate=learning_rate, **metadata)

    @property
    def scale_known(self) -> bool:
        """False when the gradient is known only up to a positive factor (a delta of unknown learning rate)."""
        return self.kind == "gradient" or self.learning_rate is not None

    def map(self, function: Any) -> Update:
        """The same update with `function(name, tensor)` in place of every tensor."""
        return replace(self, gradients={name: function(name, g) for name, g in self.gradients.items()})

    def validate(self, model: nn.Module) -> None:
        """Refuse what does not fit `model` or is not finite, naming the first tensor that is wrong."""
        parameters = dict(model.named_parameters())
        for name, gradient in self.gradients.items():
            if name not in parameters:
                raise UnsumError(
                    f"The update does not fit the model: the model has no parameter {name!r}; "
                    f"{nearest(name, parameters)}pass the model that the client trained."
                )
            expected, found = tuple(parameters[name].shape), tuple(gradient.shape)
            if expected != found:
                raise UnsumError(
                    f"The update does not fit the model: {name!r} has shape {found} in the update and {expected} "
                    "in the model; pass the model that the client trained."
                )
            if not gradient.is_floating_point():
                raise UnsumError(f"The update's {name!r} holds {gradient.dtype}; gradients must be floating point.")
            if not _is_finite(gradient):
                raise UnsumError(f"The update's {name!r} holds NaN or Inf; a server would drop it, and so does unsum.")

    def save(self, path: str | Path) -> None:
        """Write safetensors with the metadata as JSON in its header."""
        path = Path(path)
        if path.suffix != ".safetensors":
            raise UnsumError(f"Updates are saved as .safetensors; rename {path.name!r} accordingly.")
        metadata = {
            "kind": self.kind,
            "learning_rate": self.learning_rate,
            "reduction": self.reduction,
            "batch_size": self.batch_size,
            "num_examples": self.num_examples,
        }
        tensors = {name: g.detach().cpu().contiguous() for name, g in self.gradients.items()}
        save_file(tensors, path, metadata={_FORMAT: json.dumps(metadata)})

    @classmethod
    def load(cls, path: str | Path, *, kind: Kind | None = None, learning_rate: float | None = None) -> Update:
        """Read an update from `.safetensors`, `.npz` or a `.pt`/`.pth` state dict.

        Files written by `save` carry their own metadata. For any other file, `kind` says whether it holds
        gradients (the default) or weight deltas. Nothing in the file is ever executed.
        """
        tensors, metadata = _read(Path(path))
        if metadata is not None:
            if kind is not None or learning_rate is not None:
                raise UnsumError(f"{Path(path).name!r} records its own kind and learning rate; leave both out.")
            return cls(tensors, **metadata)
        if kind == "delta":
            return cls.from_delta(tensors, learning_rate)
        return cls(tensors, kind=kind or "gradient", learning_rate=learning_rate)


def _is_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or Inf, without a temporary as large as the tensor: extremes carry both."""
    return tensor.numel() == 0 or all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    readers = {".safetensors": _read_safetensors, ".npz": _read_npz, ".pt": _read_pt, ".pth": _read_pt}
    if path.suffix not in readers:
        raise unknown_name("update format", path.suffix or path.name, readers)
    if not path.is_file():
        raise UnsumError(f"There is no file {str(path)!r}.")
    try:
        return readers[path.suffix](path)
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, UnsumError):
            raise
        reason = str(error).strip().split("\n")[0]
        raise UnsumError(f"{path.name!r} cannot be read as {path.suffix}: {reason}.") from error


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        header = (file.metadata() or {}).get(_FORMAT)
    return tensors, None if header is None else _metadata(header)


def _metadata(header: str) -> dict[str, Any]:
    metadata = json.loads(header)
    known = {"kind", "learning_rate", "reduction", "batch_size", "num_examples"}
    if not isinstance(metadata, dict) or not set(metadata) <= known:
        raise UnsumError(
            f"The update's metadata holds fields unsum does not know; it knows {', '.join(sorted(known))}."
        )
    return metadata


def _read_npz(path: Path) -> tuple[dict[str, Tensor], None]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}, None


def _read_pt(path: Path) -> tuple[dict[str, Tensor], None]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's own message advises to switch the protection off
        raise UnsumError(
            f"{path.name!r} cannot be read as .pt: it holds more than tensors, and unsum runs no code out of files."
        ) from None
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UnsumError(f"{path.name!r} is not a state dict: it must map parameter names to tensors.")
    return dict(cast("Mapping[str, Tensor]", state)), None
