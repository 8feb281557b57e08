"""Named tensors out of any file that people keep gradients and weights in; nothing in a file is
ever executed."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from unsum.errors import UnsumError, first_line, unknown_name
from unsum.files.array_file import read_npy, read_npz
from unsum.files.flower_record import read_flower
from unsum.files.limits import LimitError, Limits
from unsum.files.safetensors_header import check_safetensors
from unsum.files.torch_file import load_tensors_only, plain_tensor

# where training scripts keep the weights in a checkpoint
_INSIDE = ("state_dict", "model_state_dict", "model")
_LONGEST_NAME = 500  # characters of a tensor's name
_WIDEST = 8  # bytes of a number; torch has none that is longer
# np.savez calls arrays without a name arr_0, arr_1, …
_NUMBERED = re.compile(r"(?:arr_)?(\d{1,9})")


@dataclass(frozen=True)
class TensorFile:
    """`ordered` says whether the tensors stand in the order in which they were saved, so that it
    can stand for names."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    ordered: bool


def read_tensors(
    path: Path, what: str, suffixes: tuple[str, ...] = (), *, limits: Limits | None = None
) -> TensorFile:
    """The tensors of a `.safetensors`, `.npz`, `.pt`, `.pth` or `.pb` file (a Flower record), or of
    a folder of `.npy` files.

    `what` names the contents in errors ("update", "weights"); `suffixes` allows only these kinds;
    `limits` are those of the environment unless given. What a header promises is checked against
    the file before memory is taken for it.
    """
    readers = {
        ".safetensors": _safetensors,
        ".npz": _arrays,
        ".pt": _pt,
        ".pth": _pt,
        ".pb": _arrays,
    }
    allowed = suffixes or tuple(readers)
    if path.is_dir() and not suffixes:
        kind, reader = "a folder of .npy", _folder
    elif path.suffix.lower() in allowed:
        kind, reader = path.suffix, readers[path.suffix.lower()]
    else:
        raise unknown_name(f"{what} format", path.suffix or path.name, allowed)
    if not path.exists():
        raise UnsumError(f"There is no file {str(path)!r}.")
    if not path.is_dir() and not path.is_file():
        raise UnsumError(f"{str(path)!r} is no regular file.")
    try:
        file = reader(path, limits or Limits.from_environment())
        longest = max(map(len, file.tensors), default=0)
        if longest > _LONGEST_NAME:
            raise ValueError(f"one of its tensors has a name of {longest:,} characters")
        return file
    except LimitError as error:
        raise UnsumError(f"{path.name!r} is too large to be read: {error}.") from None
    except UnsumError:
        raise
    except pickle.UnpicklingError:  # torch's own message advises to switch the protection off
        raise UnsumError(
            f"{path.name!r} cannot be read as {kind}: it holds more than tensors, and unsum runs "
            "no code out of files; save a state dict of tensors instead."
        ) from None
    except MemoryError as error:
        raise UnsumError(f"{path.name!r} does not fit into memory.") from error
    except Exception as error:  # the readers raise nearly anything on a damaged file
        raise UnsumError(f"{path.name!r} cannot be read as {kind}: {first_line(error)}.") from error


def _safetensors(path: Path, limits: Limits) -> TensorFile:
    """Its names come back sorted, whatever order they were saved in."""
    check_safetensors(path, limits)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return TensorFile(tensors, dict(file.metadata() or {}), ordered=False)


def _arrays(path: Path, limits: Limits) -> TensorFile:
    """numpy's archives and Flower's records keep the order in which arrays were saved."""
    if path.suffix.lower() == ".pb":
        limits.check_bytes(path.stat().st_size)
        arrays = read_flower(path.read_bytes(), limits)
    else:
        arrays = read_npz(path, limits=limits)
    return TensorFile(
        {name: _tensor(name, array) for name, array in arrays.items()}, {}, ordered=True
    )


def _folder(path: Path, limits: Limits) -> TensorFile:
    """NAME.npy for every tensor: what Flower's `Array.data` holds, one file each."""
    files = list(islice(path.glob("*.npy"), limits.tensors + 1))
    if not files:
        raise UnsumError(f"The folder {path.name!r} holds no .npy file.")
    limits.check_count(len(files))
    for file in files:
        if not file.is_file() or not file.resolve().is_relative_to(path.resolve()):
            raise UnsumError(
                f"{file.name!r} in {path.name!r} is no regular file of that folder; put the array "
                "itself there."
            )
    limits.check_bytes(sum(file.stat().st_size for file in files))
    numbers = [_NUMBERED.fullmatch(file.stem) for file in sorted(files)]
    files, ordered = sorted(files), all(numbers)
    if ordered:
        files = [
            file
            for _, file in sorted(
                (int(n[1]), file) for n, file in zip(numbers, files, strict=True) if n
            )
        ]
    tensors = {}
    for one in files:
        with one.open("rb") as content:
            tensors[one.stem] = _tensor(one.name, read_npy(content, one.stat().st_size, one.name))
    return TensorFile(tensors, {}, ordered)


def _tensor(name: str, array: NDArray[Any]) -> Tensor:
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > _WIDEST:
        raise UnsumError(
            f"The array {name!r} holds {array.dtype}, not numbers that a model could have."
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def _pt(path: Path, limits: Limits) -> TensorFile:
    state = load_tensors_only(path, limits)
    if (
        isinstance(state, list | tuple)
        and state
        and all(isinstance(value, Tensor) for value in state)
    ):
        # as torch.autograd.grad returns them
        state = {str(place): tensor for place, tensor in enumerate(state)}
    if isinstance(state, Mapping) and not _is_state_dict(state):
        inside = [
            state[name] for name in _INSIDE if isinstance(state.get(name), Mapping) and state[name]
        ]
        state = inside[0] if len(inside) == 1 else state
    if not isinstance(state, Mapping) or not _is_state_dict(state):
        raise UnsumError(
            f"{path.name!r} is not a state dict: it must map parameter names to tensors."
        )
    limits.check_count(len(state))
    packed = path.stat().st_size
    limits.check_bytes(
        sum(tensor.numel() * tensor.element_size() for tensor in state.values()), packed
    )
    return TensorFile(
        {n: plain_tensor(n, tensor, packed, limits) for n, tensor in state.items()},
        {},
        ordered=True,
    )


def _is_state_dict(state: Mapping[Any, Any]) -> bool:
    return all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items())


def read_header(text: str, known: set[str]) -> dict[str, Any]:
    """Metadata that unsum wrote as JSON, refused where it holds what unsum never writes."""
    metadata = json.loads(text)
    if not isinstance(metadata, dict) or not set(metadata) <= known:
        raise UnsumError(
            "The update's metadata holds fields unsum does not know; it knows "
            f"{', '.join(sorted(known))}."
        )
    return metadata
