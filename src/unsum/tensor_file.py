"""Named tensors out of any file that people keep gradients and weights in; nothing in a file is ever executed."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from unsum.errors import UnsumError, unknown_name
from unsum.flower_record import read_flower

_INSIDE = ("state_dict", "model_state_dict", "model")  # where training scripts keep the weights in a checkpoint
_NUMBERED = re.compile(r"(?:arr_)?(\d+)")  # np.savez calls arrays without a name arr_0, arr_1, …


@dataclass(frozen=True)
class TensorFile:
    """`ordered` says whether the tensors stand in the order in which they were saved, so that it can stand for names."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    ordered: bool


def read_tensors(path: Path, what: str, suffixes: tuple[str, ...] = ()) -> TensorFile:
    """The tensors of a `.safetensors`, `.npz`, `.pt`, `.pth` or `.pb` file (a Flower record), or of a folder of `.npy` files.

    `what` names the contents in errors ("update", "weights"); `suffixes` allows only these kinds.
    """
    readers = {".safetensors": _safetensors, ".npz": _npz, ".pt": _pt, ".pth": _pt, ".pb": _flower}
    allowed = suffixes or tuple(readers)
    if path.is_dir() and not suffixes:
        kind, reader = "a folder of .npy", _folder
    elif path.suffix.lower() in allowed:
        kind, reader = path.suffix, readers[path.suffix.lower()]
    else:
        raise unknown_name(f"{what} format", path.suffix or path.name, allowed)
    if not path.exists():
        raise UnsumError(f"There is no file {str(path)!r}.")
    try:
        return reader(path)
    except UnsumError:
        raise
    except pickle.UnpicklingError:  # torch's own message advises to switch the protection off
        raise UnsumError(
            f"{path.name!r} cannot be read as {kind}: it holds more than tensors, and unsum runs no code out of files; "
            "save a state dict of tensors instead."
        ) from None
    except MemoryError as error:
        raise UnsumError(f"{path.name!r} does not fit into memory.") from error
    except Exception as error:  # the readers raise nearly anything on a damaged file
        reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
        raise UnsumError(f"{path.name!r} cannot be read as {kind}: {reason}.") from error


def _safetensors(path: Path) -> TensorFile:
    """Its names come back sorted, whatever order they were saved in."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return TensorFile(tensors, dict(file.metadata() or {}), ordered=False)


def _npz(path: Path) -> TensorFile:
    with np.load(path, allow_pickle=False) as arrays:
        return TensorFile({name: _tensor(name, arrays[name]) for name in arrays.files}, {}, ordered=True)


def _flower(path: Path) -> TensorFile:
    arrays = read_flower(path.read_bytes())
    return TensorFile({name: _tensor(name, array) for name, array in arrays.items()}, {}, ordered=True)


def _folder(path: Path) -> TensorFile:
    """NAME.npy for every tensor: what Flower's `Array.data` holds, one file each."""
    files = sorted(path.glob("*.npy"))
    if not files:
        raise UnsumError(f"The folder {path.name!r} holds no .npy file.")
    numbers = [_NUMBERED.fullmatch(file.stem) for file in files]
    ordered = all(numbers)
    if ordered:
        files = [file for _, file in sorted((int(n[1]), file) for n, file in zip(numbers, files, strict=True) if n)]
    tensors = {file.stem: _tensor(file.name, np.load(file, allow_pickle=False)) for file in files}
    return TensorFile(tensors, {}, ordered)


def _tensor(name: str, array: NDArray[Any]) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise UnsumError(f"The array {name!r} holds {array.dtype}, not numbers that a model could have.")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def _pt(path: Path) -> TensorFile:
    state = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(state, list | tuple) and state and all(isinstance(value, Tensor) for value in state):
        state = {str(place): tensor for place, tensor in enumerate(state)}  # as torch.autograd.grad returns them
    if isinstance(state, Mapping) and not _is_state_dict(state):
        inside = [state[name] for name in _INSIDE if isinstance(state.get(name), Mapping) and state[name]]
        state = inside[0] if len(inside) == 1 else state
    if not isinstance(state, Mapping) or not _is_state_dict(state):
        raise UnsumError(f"{path.name!r} is not a state dict: it must map parameter names to tensors.")
    return TensorFile(dict(state), {}, ordered=True)


def _is_state_dict(state: Mapping[Any, Any]) -> bool:
    return all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items())


def read_header(text: str, known: set[str]) -> dict[str, Any]:
    """Metadata that unsum wrote as JSON, refused where it holds what unsum never writes."""
    metadata = json.loads(text)
    if not isinstance(metadata, dict) or not set(metadata) <= known:
        raise UnsumError(
            f"The update's metadata holds fields unsum does not know; it knows {', '.join(sorted(known))}."
        )
    return metadata
