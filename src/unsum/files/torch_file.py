"""What `torch.save` wrote, read with `weights_only=True` after its archive was looked at; tensors
alone come back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.files.array_file import open_archive
from unsum.files.limits import Limits

_ZIP, _PICKLE = b"PK\x03\x04", b"\x80\x02"  # how files of torch.save begin, now and before 2020
_PICKLED = ".pkl"
_DTYPES = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip
_FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def load_tensors_only(path: Path, limits: Limits | None = None) -> Any:
    """What the file holds, from plain containers and tensors; archives that unpack to more than
    they are are refused."""
    limits = limits or Limits.from_environment()
    with path.open("rb") as file:
        start = file.read(4)
    if start == _ZIP:
        with open_archive(path, limits, packed=False) as archive:
            for member in archive.infolist():
                if member.filename.endswith(_PICKLED):
                    limits.check_metadata(member.file_size)
        return torch.load(path, map_location="cpu", weights_only=True)
    if not start.startswith(_PICKLE):
        # an old tar, say, which torch would unpack to disk
        raise ValueError("torch.save did not write it")
    limits.check_bytes(path.stat().st_size)
    with path.open("rb") as file:
        return torch.load(cast("IO[bytes]", _Clamped(file)), map_location="cpu", weights_only=True)


class _Clamped:
    """A file that is never asked for more than it has left: Python takes the memory for a read
    before it looks."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        self.seek, self.tell = file.seek, file.tell
        file.seek(0)

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._file.tell(), 0)
        return self._file.read(left if size < 0 else min(size, left))

    def readline(self, size: int = -1) -> bytes:
        return self._file.readline(size)

    def readinto(self, room: Any) -> int:
        return cast("int", self._file.readinto(room))  # type: ignore[attr-defined]


def plain_tensor(name: str, tensor: Tensor, packed: int, limits: Limits) -> Tensor:
    """The tensor as a dense one of its own memory; what only looks like one, or is larger than its
    bytes, is refused."""
    if (
        type(tensor) not in (Tensor, torch.nn.Parameter)
        or tensor.layout != torch.strided
        or tensor.is_quantized
    ):
        raise UnsumError(f"The tensor {name!r} is not a plain dense one; save it as such.")
    if tensor.device.type != "cpu" or tensor.dtype not in _DTYPES:
        kind, place = str(tensor.dtype).removeprefix("torch."), tensor.device.type
        what = kind if place == "cpu" else f"nothing but a shape ({place})"
        raise UnsumError(f"The tensor {name!r} holds {what}, not numbers that a model could have.")
    limits.check_bytes(tensor.numel() * tensor.element_size(), packed)
    return tensor.detach().contiguous()


@contextmanager
def no_code_from_files() -> Iterator[None]:
    """Within it, other libraries' calls of `torch.load` unpickle nothing but tensors, whatever they
    ask for."""
    before = os.environ.get(_FORCED)
    os.environ[_FORCED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORCED]
        else:
            os.environ[_FORCED] = before
