"""The attacker's own photos out of a file."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from unsum.errors import UnsumError
from unsum.files.tensor_file import read_tensors

_SUFFIXES = (".safetensors", ".npz", ".pt", ".pth")


def read_auxiliary(path: str | Path) -> tuple[Tensor, Tensor]:
    """((N, c, h, w) in [0, 1], (N,) class numbers) from arrays `images`, whole numbers up to 255 or fractions, and `labels`."""
    tensors = read_tensors(Path(path), "auxiliary data", _SUFFIXES).tensors
    if "images" not in tensors or "labels" not in tensors:
        raise UnsumError(f"{Path(path).name!r} must hold arrays called images and labels, not {', '.join(tensors)}.")
    images = tensors["images"]
    return images.float() / (1 if images.is_floating_point() else 255), tensors["labels"].long()
