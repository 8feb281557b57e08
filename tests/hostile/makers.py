"""Files as a hostile or a careless stranger would send them: raw bytes, made by hand where no
library would write such things."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image


def safetensors(header: Any, body: bytes = b"", *, length: int | None = None) -> bytes:
    """A file with this header (JSON, or raw bytes) and a length field that may lie."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def npy(
    descr: str,
    shape: tuple[int, ...],
    body: bytes,
    *,
    fortran: bool = False,
    magic: bytes = b"\x93NUMPY\x01\x00",
) -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}\n".encode()
    return magic + struct.pack("<H", len(header)) + header + body


def zipped(members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npz_bomb(size: int) -> bytes:
    """An array of `size` bytes of zeros, compressed a thousandfold; it is written piece by
    piece."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("fc.weight.npy", "w", force_zip64=True) as file,
    ):
        file.write(npy("|u1", (size,), b""))
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return buffer.getvalue()


def relabeled(archive: bytes, size: int) -> bytes:
    """The same zip, whose list of members says that the first has `size` bytes."""
    place = archive.rfind(b"PK\x01\x02")
    place = archive.find(b"PK\x01\x02")
    return archive[: place + 24] + struct.pack("<L", size) + archive[place + 28 :]


def torch_file(value: Any, *, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def repacked(archive: bytes, compression: int) -> bytes:
    """A file of torch.save with its members compressed, which torch never does."""
    with zipfile.ZipFile(io.BytesIO(archive)) as old:
        return zipped([(name, old.read(name)) for name in old.namelist()], compression)


class Runs:
    """What a pickle can do when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def protobuf(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def flower(arrays: list[tuple[str, bytes]], *, kind: bytes = b"numpy.ndarray") -> bytes:
    """Flower's ArrayRecord of `.npy` contents."""
    items = b""
    for name, content in arrays:
        array = protobuf(1, b"float32") + protobuf(3, kind) + protobuf(4, content)
        items += protobuf(1, protobuf(1, name.encode()) + protobuf(2, array))
    return items


def picture(size: tuple[int, int] = (8, 8), kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, "red").save(buffer, format=kind)
    return buffer.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """A PNG that says it is so large, in a hundred bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">L", len(content))
            + kind
            + content
            + struct.pack(">L", zlib.crc32(kind + content))
        )

    header = struct.pack(">LLBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(100)))
        + chunk(b"IEND", b"")
    )


def tar(members: list[tuple[tarfile.TarInfo | str, bytes]], pack: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{pack}") as archive:
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def tar_promising(name: str, size: int) -> bytes:
    """A tar whose one file is said to have `size` bytes, and has none."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def long_header_bomb(size: int) -> bytes:
    """A tar.gz whose name is `size` bytes long: a reader that believes it takes the memory at
    once."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, size
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size >> 20):
            file.write(b"a" * (1 << 20))
    return buffer.getvalue()


def tar_bomb(size: int) -> bytes:
    """A tar.gz with one text file of `size` zeros before its photo."""
    info = tarfile.TarInfo("zeros.txt")
    info.size = size
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
        file.write(bytes(1024))
    return buffer.getvalue()


def xz_with_dictionary(size: int) -> bytes:
    """An xz stream whose header asks for a dictionary of `size` bytes to unpack it."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 20}]
    content = bytearray(lzma.compress(tar([("a/b.png", picture())]), filters=filters))
    # after the stream's own header: size, flags, filter id, length of its properties, the
    # dictionary's size
    block = 12
    content[block + 4] = 2 * (size.bit_length() - 1) - 24
    length = (content[block] + 1) * 4
    content[block + length - 4 : block + length] = struct.pack(
        "<L", zlib.crc32(bytes(content[block : block + length - 4]))
    )
    return bytes(content)
