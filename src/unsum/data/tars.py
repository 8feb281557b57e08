"""Tars from elsewhere: read as a stream, never unpacked to disk, and no header may ask for more memory than headers need."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from unsum.files.limits import Limits

_MOST_MEMORY = 1 << 28  # bytes that unpacking xz may take; its header can ask for sixteen times as many


class _Bounded:
    """A file whose reads have a largest size: tarfile reads a header's attributes at once, however long they are said to be."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self._most = file, most

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self._most:
            raise tarfile.ReadError(f"a header of {size:,} bytes is none")
        return self._file.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()


@contextmanager
def open_tar(path: Path, most: int) -> Iterator[tarfile.TarFile]:
    """A tar, plain or compressed with gzip, bzip2 or xz; no single read may be longer than `most` bytes."""
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        start = file.read(4096)
        file.seek(0)
        if start.startswith(b"\x1f\x8b"):
            opened: Any = stack.enter_context(gzip.GzipFile(fileobj=file))
        elif start.startswith(b"BZh"):
            opened = stack.enter_context(bz2.BZ2File(file))
        elif start.startswith(b"\xfd7zXZ"):
            lzma.LZMADecompressor(memlimit=_MOST_MEMORY).decompress(start, 1)
            opened = stack.enter_context(lzma.LZMAFile(file))
        else:
            opened = file
        bounded = cast("IO[bytes]", _Bounded(opened, most))
        yield stack.enter_context(tarfile.open(fileobj=bounded, mode="r:"))


def checked_members(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """The plain files, one by one: not too many, and not too many bytes together, before they are passed over."""
    limits, packed = Limits.from_environment(), path.stat().st_size
    total = 0
    for count, member in enumerate(archive, 1):
        limits.check_pictures(count)
        if member.isreg():
            yield member
        total += max(member.size, 0)
        limits.check_bytes(total, packed)
