"""Where pictures stand: the names, classes and still encoded contents of a folder, a tar or an npz.

Tars from elsewhere: read as a stream, never unpacked to disk, and no header may ask for more memory
than headers need.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from unsum.errors import UnsumError, first_line
from unsum.files.array_file import names_in, read_npz
from unsum.files.limits import LimitError, Limits
from unsum.files.walk import files_under

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_MOST_BYTES = 1 << 28  # of one encoded picture: beyond this a tar's header lies, or it is no photo
_LONGEST_HEADER = 1 << 20  # bytes of one header: a name, or a list of attributes
_LONGEST_LIST = 200  # characters of the names of arrays in a sentence
_LABEL, _LONGEST_LABEL = ".cls", 1024  # webdataset's file of a sample's class
# ValueError and its like: tarfile meets hostile headers with whatever their numbers lead to.
_TAR_ERRORS = (
    tarfile.TarError,
    OSError,
    EOFError,
    zlib.error,
    LZMAError,
    ValueError,
    OverflowError,
    LookupError,
)

Pictures = Iterator[bytes | NDArray[np.uint8]]


@dataclass(frozen=True)
class Source:
    """Every picture's name and class, in the order in which `pictures()` gives their contents.

    `class_order` is the source's own order of its classes, if it has one. `fetch(i)` gives one
    picture alone, where that can be had without reading all that stand before it.
    """

    names: list[str]
    classes: list[str]
    pictures: Callable[[], Pictures]
    class_order: list[str] | None = None
    fetch: Callable[[int], bytes | NDArray[np.uint8]] | None = None

    @classmethod
    def of(
        cls,
        names: list[str],
        classes: list[str],
        fetch: Callable[[int], bytes | NDArray[np.uint8]],
        class_order: list[str] | None = None,
    ) -> Source:
        return cls(names, classes, lambda: map(fetch, range(len(names))), class_order, fetch)

    def chosen(self, places: Sequence[int]) -> list[bytes | NDArray[np.uint8]]:
        """The pictures at these places, in the order of `places`."""
        if self.fetch is not None:
            return [self.fetch(place) for place in places]
        wanted, found = set(places), {}
        for place, picture in zip(range(max(places) + 1), self.pictures(), strict=False):
            if place in wanted:
                found[place] = picture
        return [found[place] for place in places]


def open_source(path: Path) -> Source:
    if not path.exists():
        raise UnsumError(f"There is no file or folder {str(path)!r}.")
    if path.is_dir():
        source = _folder(path)
    else:
        source = _npz(path) if path.suffix.lower() == ".npz" else _tar(path)
    if not source.names:
        kinds = ", ".join(suffix.removeprefix(".") for suffix in _SUFFIXES)
        raise UnsumError(f"{path.name!r} holds no pictures; unsum looks for {kinds}.")
    return source


def _is_picture(name: str) -> bool:
    """By its name; what macOS leaves beside every file in an archive begins with a dot."""
    return name.lower().endswith(_SUFFIXES) and not name.startswith(".")


def _folder(path: Path) -> Source:
    limits = Limits.from_environment()
    found = (file for file in files_under(path) if _is_picture(file.name))
    files = sorted(islice(found, limits.pictures + 1))
    if len(files) > limits.pictures:
        raise UnsumError(
            f"{path.name!r} holds more than {limits.pictures:,} pictures; set UNSUM_MAX_PICTURES "
            "higher."
        )

    def fetch(place: int) -> bytes:
        try:
            size = files[place].stat().st_size
            if size > _MOST_BYTES:
                raise UnsumError(
                    f"{str(files[place])!r} is too large for a picture: {size:,} bytes."
                )
            return files[place].read_bytes()
        except OSError as error:
            raise UnsumError(f"{str(files[place])!r} cannot be read: {error.strerror}.") from error

    names = [file.relative_to(path).as_posix() for file in files]
    top = path.resolve().name  # `.` has no name
    return Source.of(
        names, [top if file.parent == path else file.parent.name for file in files], fetch
    )


def _tar(path: Path) -> Source:
    """Nothing is unpacked to disk; links and everything else that is not a file are passed over."""
    try:
        with open_tar(path, _LONGEST_HEADER) as archive:
            members, labels = [], {}
            for member in checked_members(archive, path):
                if _is_picture(PurePosixPath(member.name).name):
                    if member.size > _MOST_BYTES:
                        what = f"{member.name!r} in {path.name!r}"
                        raise UnsumError(
                            f"{what} is too large for a picture: {member.size:,} bytes."
                        )
                    members.append(member)
                elif member.name.endswith(_LABEL) and member.size <= _LONGEST_LABEL:
                    labels[_key(member.name)] = _content(archive, member)
    except LimitError as error:
        raise UnsumError(f"{path.name!r} is too large to be read: {error}.") from None
    except UnsumError:
        raise
    except _TAR_ERRORS as error:
        raise UnsumError(
            f"{path.name!r} is neither a folder nor a readable tar or npz: {first_line(error)}."
        ) from error

    def pictures() -> Pictures:
        with open_tar(path, _MOST_BYTES) as archive:
            for member in members:
                try:
                    content = _content(archive, member)
                except _TAR_ERRORS as error:
                    raise UnsumError(
                        f"{member.name!r} in {path.name!r} cannot be read: {first_line(error)}."
                    ) from error
                yield content

    names = [str(PurePosixPath(member.name)) for member in members]
    classes = (
        _web_classes(names, labels, path) if labels else [_tar_class(name, path) for name in names]
    )
    return Source(names, classes, pictures)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    content = b"" if file is None else file.read()
    if len(content) != member.size:
        raise EOFError("it ends too early")
    return content


def _key(name: str) -> str:
    """What webdataset calls the files of one sample by: the path up to the first dot of the file's
    own name."""
    inside = PurePosixPath(name)
    return str(inside.parent / inside.name.partition(".")[0])


def _web_classes(names: list[str], labels: dict[str, bytes], path: Path) -> list[str]:
    """The class of every picture KEY.jpg is what KEY.cls says."""
    lacking = next((name for name in names if _key(name) not in labels), None)
    if lacking is not None:
        raise UnsumError(
            f"{lacking!r} in {path.name!r} has no label beside it; add {_key(lacking) + _LABEL!r}."
        )
    try:
        return [labels[_key(name)].decode("utf-8").strip() for name in names]
    except UnicodeDecodeError as error:
        raise UnsumError(
            f"The {_LABEL} files of {path.name!r} must hold a number or a name as text."
        ) from error


def _tar_class(name: str, path: Path) -> str:
    """CLASS/name.jpg or CLASS_name.jpg; a picture with neither is of the class that the tar is
    called."""
    inside = PurePosixPath(name)
    if inside.parent.name:
        return inside.parent.name
    prefix, underscore, _ = inside.name.partition("_")
    return prefix if underscore else path.name.partition(".")[0]


def _npz(path: Path) -> Source:
    try:
        held = read_npz(path, ("images", "labels", "classes"), kinds="iubfU")
        keys = ", ".join(name if name.isprintable() else repr(name) for name in names_in(path)[:6])[
            :_LONGEST_LIST
        ]
    except LimitError as error:
        raise UnsumError(f"{path.name!r} is too large to be read: {error}.") from None
    except UnsumError as error:
        raise UnsumError(f"{path.name!r} cannot be read as npz: {first_line(error)}.") from None
    except Exception as error:  # numpy, zipfile and zlib raise nearly anything on a damaged file
        raise UnsumError(f"{path.name!r} cannot be read as npz: {first_line(error)}.") from error
    images = held.get("images")
    if images is None:
        raise UnsumError(f"{path.name!r} needs an array `images`; it holds {keys or 'nothing'}.")
    if images.dtype != np.uint8 or not (
        images.ndim == 3 or (images.ndim == 4 and images.shape[3] in (1, 3))
    ):
        raise UnsumError(
            f"`images` of {path.name!r} must be uint8 of shape (N, height, width, 3), not "
            f"{images.dtype} {images.shape}."
        )
    if 0 in images.shape[1:]:
        raise UnsumError(f"`images` of {path.name!r} has no pixels: its shape is {images.shape}.")
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    names = [f"{path.stem}/{number}" for number in range(len(images))]
    classes, order = _npz_classes(path, held, len(images))
    return Source.of(names, classes, lambda place: images[place], order)


def _npz_classes(
    path: Path, held: dict[str, NDArray[Any]], count: int
) -> tuple[list[str], list[str] | None]:
    """Every image's class, and the order of the classes if the file names them."""
    labels = held.get("labels")
    if labels is None:
        return [path.stem] * count, None
    if labels.size != count or labels.dtype.kind not in "iuU":
        raise UnsumError(
            f"`labels` of {path.name!r} must be {count} integers or names, one for each image."
        )
    _check_text(path, held)
    flat = labels.reshape(-1)
    if flat.dtype.kind == "U" or "classes" not in held:
        return [str(label) for label in flat], None
    called = [str(name) for name in held["classes"].reshape(-1)]
    order = unambiguous(called)
    if count and not 0 <= int(flat.min()) <= int(flat.max()) < len(order):
        raise UnsumError(
            f"`labels` of {path.name!r} must be numbers of its {len(order)} `classes`, counted "
            "from 0."
        )
    return [order[int(label)] for label in flat], order


def _check_text(path: Path, held: dict[str, NDArray[Any]]) -> None:
    """numpy takes any 32 bits for a character; Python ends with an error of its own at the first
    that is none."""
    for name in ("labels", "classes"):
        texts = held.get(name)
        if texts is not None and texts.dtype.kind == "U" and texts.size:
            codes = np.ascontiguousarray(texts.astype(texts.dtype.newbyteorder("="))).view(
                np.uint32
            )
            if int(codes.max()) > sys.maxunicode:
                raise UnsumError(f"`{name}` of {path.name!r} holds what is no text.")


def unambiguous(called: Sequence[str]) -> list[str]:
    """Class names, with their number where two are the same: ImageNet has two classes called
    crane."""
    often = Counter(called)
    return [f"{name} ({place})" if often[name] > 1 else name for place, name in enumerate(called)]


_XZ = b"\xfd7zXZ"
_PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, _XZ: lzma.open}  # by how files begin
# bytes that unpacking xz may take; its header can ask for sixteen times as many
_MOST_MEMORY = 1 << 28


class _Bounded:
    """A file whose reads have a largest size: tarfile reads a header's attributes at once, however
    long they are said to be."""

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
    """A tar, plain or compressed with gzip, bzip2 or xz; no single read may be longer than `most`
    bytes."""
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        start = file.read(4096)
        file.seek(0)
        if start.startswith(_XZ):
            lzma.LZMADecompressor(memlimit=_MOST_MEMORY).decompress(start, 1)
        unpack: Any = next(
            (kind for magic, kind in _PACKED.items() if start.startswith(magic)), None
        )
        opened = file if unpack is None else stack.enter_context(unpack(file))
        bounded = cast("IO[bytes]", _Bounded(opened, most))
        yield stack.enter_context(tarfile.open(fileobj=bounded, mode="r:"))


def checked_members(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """The plain files, one by one: not too many, and not too many bytes together, before they are
    passed over."""
    limits, packed = Limits.from_environment(), path.stat().st_size
    total = 0
    for count, member in enumerate(archive, 1):
        limits.check_pictures(count)
        if member.isreg():
            yield member
        total += max(member.size, 0)
        limits.check_bytes(total, packed)
