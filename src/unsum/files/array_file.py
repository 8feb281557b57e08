"""numpy's files, `.npy` and `.npz`: headers are believed only as far as the bytes behind them go,
and nothing is unpickled."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from unsum.errors import UnsumError
from unsum.files.limits import Limits

_NUMBERS = "fiub"  # kinds of dtype that a tensor can have: float, int, unsigned, bool
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x06"
_LONGEST_COMMENT = 1 << 16  # bytes behind a zip's table: the format has two bytes for their number
# of numpy and torch; others can ask for gigabytes to unpack
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1  # the bit of a zip member's flags
_LONGEST_HEADER = 1 << 16  # bytes; numpy itself believes no header of more than 10 000
_PIECE = 1 << 20  # bytes read at a time


def read_npy(file: IO[bytes], size: int, name: str, *, kinds: str = _NUMBERS) -> NDArray[Any]:
    """The array of an open `.npy` of `size` bytes. Its shape must be what the bytes are, before
    they are read."""
    shape, fortran, dtype = _header(file, name)
    if dtype.hasobject:
        raise UnsumError(
            f"The array {name!r} holds Python objects, and unsum runs no code out of files."
        )
    if dtype.kind not in kinds:
        raise UnsumError(f"The array {name!r} holds {dtype}, not numbers that a model could have.")
    if any(side < 0 for side in shape):
        raise ValueError(f"the array {name!r} has a negative side")
    count = math.prod(shape)
    left = size - file.tell()
    if count * dtype.itemsize != left:
        raise ValueError(
            f"the header of {name!r} promises {count * dtype.itemsize:,} bytes, and {left:,} "
            "follow it"
        )
    flat = np.empty(count, dtype)
    if left:
        _fill(memoryview(flat.view(np.uint8)), file, name)  # type: ignore[arg-type] # an array has a buffer
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype; numpy would take as much memory as the header says that it is
    long."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"the array {name!r} is of an unknown version")
    said = file.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(said, "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"the header of {name!r} says that it is {length:,} bytes long")
    header = io.BytesIO(said + file.read(length))
    return (
        npy.read_array_header_1_0(header)
        if version == (1, 0)
        else npy.read_array_header_2_0(header)
    )


def _fill(room: memoryview, file: IO[bytes], name: str) -> None:
    """Piece by piece: a second copy of a large array would double the memory."""
    place = 0
    while place < len(room):
        piece = file.read(min(_PIECE, len(room) - place))
        if not piece:
            raise ValueError(f"the array {name!r} ends too early")
        room[place : place + len(piece)] = piece
        place += len(piece)


def read_npz(
    path: Path,
    names: Iterable[str] | None = None,
    *,
    limits: Limits | None = None,
    kinds: str = _NUMBERS,
) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz`, or those of `names` that it has; no two may have one name."""
    wanted = None if names is None else set(names)
    arrays = {}
    with open_archive(path, limits) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"two arrays are called {name!r}")
            if wanted is None or name in wanted:
                with archive.open(member) as file:
                    arrays[name] = read_npy(file, member.file_size, name, kinds=kinds)
    return arrays


def names_in(path: Path) -> list[str]:
    with open_archive(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


@contextmanager
def open_archive(
    path: Path, limits: Limits | None = None, *, packed: bool = True
) -> Iterator[zipfile.ZipFile]:
    """A zip whose list of members was checked: not too many, not too large, none twice; `packed`
    allows compressed ones.

    A member never gives more bytes than the list says, so the list is what has to be checked.
    """
    limits = limits or Limits.from_environment()
    size = path.stat().st_size
    with path.open("rb") as file:
        limits.check_metadata(_directory_size(file, size))
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            limits.check_count(len(members))
            limits.check_bytes(sum(member.file_size for member in members), size)
            _check_members(members, size, packed)
            yield archive


def _check_members(members: list[zipfile.ZipInfo], size: int, packed: bool) -> None:
    if sum(member.compress_size for member in members) > size:
        raise ValueError("its members overlap")
    if len({member.filename for member in members}) < len(members):
        raise ValueError("two of its members have one name")
    for member in members:
        if member.flag_bits & _ENCRYPTED:
            raise ValueError(f"its member {member.filename!r} is encrypted")
        if member.compress_type not in (_PLAIN if packed else _PLAIN[:1]):
            raise ValueError(f"its member {member.filename!r} is compressed in an unusual way")
        if member.compress_type == zipfile.ZIP_STORED and member.file_size != member.compress_size:
            raise ValueError(f"its member {member.filename!r} lies about its size")


def _directory_size(file: IO[bytes], size: int) -> int:
    """Bytes of the list of members, which is read as a whole: out of the record at the end of the
    file."""
    tail_size = min(size, _LONGEST_COMMENT + 256)
    file.seek(size - tail_size)
    tail = file.read(tail_size)
    file.seek(0)
    place = tail.rfind(_END)
    if place < 0 or len(tail) - place < 22:
        raise ValueError("it is no zip archive, or its end is missing")
    length: int = struct.unpack_from("<L", tail, place + 12)[0]
    place_64 = tail.rfind(_END_64, 0, place)
    if length == 0xFFFFFFFF and 0 <= place_64 <= len(tail) - 48:
        length = struct.unpack_from("<Q", tail, place_64 + 40)[0]
    return length
