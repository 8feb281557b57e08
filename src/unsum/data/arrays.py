"""Inputs and targets that are no labeled photos: masks, numbers to predict, sequences, in the
arrays of an npz."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unsum.errors import UnsumError
from unsum.files.array_file import read_npz

_PAIR = 2  # inputs and targets
_COLORS = (1, 3)  # channels of a photo, which stand last in a file and first in a model


def open_arrays(path: Path) -> tuple[Tensor, Tensor] | None:
    """(inputs, targets) as a model takes them; None where the npz holds labeled photos, or nothing
    of the kind.

    `images` or `inputs` are photos, uint8, or numbers of any shape, which stay as they are;
    `labels` or `targets` have one entry or array for each: class numbers, masks of class numbers,
    or numbers to predict.
    """
    try:
        held = read_npz(path, ("images", "inputs", "labels", "targets"), kinds="iubf")
    except Exception:  # damaged, or no numbers: who reads photos says what is wrong
        return None
    images, labels = held.get("images", held.get("inputs")), held.get("labels", held.get("targets"))
    if (
        images is None
        or labels is None
        or images.ndim < 2
        or labels.ndim < 1
        or len(images) != len(labels)
    ):
        return None
    photos = images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] in _COLORS
    classes = labels.dtype.kind in "iu"
    if not len(images) or 0 in images.shape or (photos and classes and labels.size == len(labels)):
        return None
    if not photos and images.dtype.kind != "f":
        return None
    return _inputs(images, photos=photos), _targets(labels, classes=classes)


def as_tensors(data: Any) -> Any:
    """(inputs, targets) of which either may be an array of NumPy, or numbers in a list, as tensors;
    anything else as it is."""
    if not isinstance(data, tuple) or len(data) != _PAIR:
        return data
    inputs, targets = data
    if isinstance(inputs, Tensor) and (isinstance(targets, Tensor) or _are_mappings(targets)):
        return data
    return _as_tensor(inputs, "inputs"), (
        targets if _are_mappings(targets) else _as_tensor(targets, "targets")
    )


def _as_tensor(values: Any, what: str) -> Any:
    """Numbers as models take them: whole ones as class numbers, others in the default precision."""
    held = isinstance(values, list | tuple) and any(isinstance(one, Tensor) for one in values)
    if isinstance(values, Tensor) or held:  # pictures of several sizes, say
        return values
    try:
        found = torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnsumError(
            f"The {what} must be a tensor or an array of numbers, not {type(values).__name__}; "
            "give data=(inputs, targets)."
        ) from error
    if found.dtype == torch.float64:
        return found.to(torch.get_default_dtype())
    signed = found.dtype in (torch.int8, torch.int16, torch.int32)
    return (
        found.long() if signed or (what == "targets" and not found.is_floating_point()) else found
    )


def _are_mappings(targets: Any) -> bool:
    return isinstance(targets, list | tuple) and any(isinstance(one, Mapping) for one in targets)


def some_of(data: tuple[Tensor, Tensor], count: int, seed: int) -> tuple[Tensor, Tensor]:
    """As many of them as a client has, chosen by the seed, in the order of the file."""
    drawn = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(seed))[:count]
    return data[0][drawn.sort().values], data[1][drawn.sort().values]


def _inputs(images: NDArray[Any], *, photos: bool) -> Tensor:
    found = torch.from_numpy(np.ascontiguousarray(images))
    return found.permute(0, 3, 1, 2).float() / 255 if photos else found.float()


def _targets(labels: NDArray[Any], *, classes: bool) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64 if classes else np.float32))
