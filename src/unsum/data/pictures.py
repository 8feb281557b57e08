"""Photos of the user's own, out of folders, tars and npz files, as one uint8 tensor with labels."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from unsum.data.datasets import open_data
from unsum.data.sources import Source
from unsum.errors import UnsumError, first_line

# Other formats stay closed even under a .jpg name: some of them start programs, none is usual for
# photos.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
_MOST_PIXELS = 89_478_485  # where Pillow itself begins to warn of a decompression bomb
# EXIF's tag of how the camera was held, and from where on sides are exchanged
_ORIENTATION, _ON_ITS_SIDE = 0x0112, 5
_CHUNK = 256  # encoded pictures in memory at a time
# digits; a longer class name is a date or an identifier, not the number of a class
_LONGEST_NUMBER = 6


@dataclass(frozen=True)
class Photos:
    """(N, 3, s, s) uint8 images, (N,) int64 labels, what the classes and files are called, and what
    to cite them by.

    `class_names[label]` is the name of a label. `fingerprint` covers every file's name and content,
    whatever their order.
    """

    images: Tensor
    labels: Tensor
    class_names: list[str]
    names: list[str]
    sources: list[str]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.names)

    @property
    def card(self) -> dict[str, Any]:
        """What a model card says of its data."""
        return {"photos": len(self), "sources": self.sources, "sha256": self.fingerprint}


def read_photos(
    paths: str | Path | Sequence[str | Path], *, size: int, limit: int | None = None
) -> Photos:
    """The photos of one or several sources, one after the other, as squares of `size` pixels.

    A source is a folder, where a picture's folder is its class; a tar, plain or compressed, of
    CLASS/name.jpg, CLASS_name.jpg, or webdataset's KEY.jpg beside KEY.cls; an npz with `images` (N,
    h, w, 3) uint8 and, if there are, `labels` and `classes`; or a data set of another library, as
    `open_data` takes it. The middle square of a picture is resized with Lanczos' filter; one that
    has the size already is taken as it is.

    Args:
        limit: only the first so many photos.

    Returns:
        `Photos`. Labels go by the names of the classes, over all sources: in the order of an npz's
        own `classes`, else the names themselves where all are numbers, else in alphabetical order.
    """
    if size < 1:
        raise UnsumError(f"Photos need a side of at least one pixel, not {size}.")
    if limit is not None and limit < 1:
        raise UnsumError(f"A limit must leave at least one photo, not {limit}.")
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    sources = [open_data(path) for path in several]
    names = list(chain.from_iterable(source.names for source in sources))[:limit]
    if not names:
        raise UnsumError("Name at least one folder, tar or npz of photos.")
    classes = list(chain.from_iterable(source.classes for source in sources))[: len(names)]
    images = _room(len(names), size)
    pictures = islice(chain.from_iterable(source.pictures() for source in sources), len(names))
    fingerprint = _decode_all(names, pictures, images)
    class_names, labels = numbered(sources, classes)
    return Photos(
        images,
        labels,
        class_names,
        names,
        [Path(path).resolve().name for path in several],
        fingerprint,
    )


def _room(count: int, size: int) -> Tensor:
    try:
        return torch.empty((count, 3, size, size), dtype=torch.uint8)
    except RuntimeError as error:
        need = f"{count * 3 * size**2 / 1e9:.0f} GB"
        raise UnsumError(
            f"{count} photos of {size}² need {need} of memory; ask for fewer or smaller ones."
        ) from error


def numbered(sources: Sequence[Source], classes: Sequence[str]) -> tuple[list[str], Tensor]:
    """The class names by label, and the labels; numbers that no picture carries have a place
    too."""
    orders = [source.class_order for source in sources]
    if orders[0] is not None and all(order == orders[0] for order in orders):
        class_names = orders[0]
    elif all(
        name.isascii() and name.isdigit() and len(name) <= _LONGEST_NUMBER for name in classes
    ):
        labels = [int(name) for name in classes]
        return [str(number) for number in range(max(labels) + 1)], torch.tensor(labels)
    else:
        class_names = sorted(set(classes))
    numbers = {name: number for number, name in enumerate(class_names)}
    return class_names, torch.tensor([numbers[name] for name in classes])


def _decode_all(
    names: Sequence[str], pictures: Iterator[bytes | NDArray[np.uint8]], images: Tensor
) -> str:
    """Fill `images`; the source is read in order, since a compressed one cannot jump, and decoded
    by several threads."""
    room = images.numpy()  # the same memory
    digests: list[bytes] = []
    with ThreadPoolExecutor() as pool:
        while chunk := list(islice(pictures, _CHUNK)):
            places = range(len(digests), len(digests) + len(chunk))
            digests += pool.map(
                _place, (room[i] for i in places), (names[i] for i in places), chunk
            )
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()[:16]


def _place(room: NDArray[np.uint8], name: str, picture: bytes | NDArray[np.uint8]) -> bytes:
    """Write one picture as (3, s, s) and return the digest of its name and content."""
    room[:] = decode(name, picture, room.shape[-1]).numpy()
    content = picture if isinstance(picture, bytes) else np.ascontiguousarray(picture).tobytes()
    return hashlib.sha256(name.encode("utf-8", "surrogateescape") + b"\0" + content).digest()


def decode(name: str, picture: bytes | NDArray[np.uint8], size: int) -> Tensor:
    """(3, size, size) uint8 of the middle square of a picture; `name` stands in the error if it
    cannot be read."""
    try:
        pixels = np.array(square(picture, size))
    except Exception as error:  # a hostile file can make a decoder raise nearly anything
        raise UnsumError(
            f"The picture {name!r} cannot be read ({first_line(error)}); remove or repair it."
        ) from error
    return torch.from_numpy(pixels.transpose(2, 0, 1))


def measured(picture: bytes | NDArray[np.uint8]) -> tuple[int, int]:
    """Width and height, from the header alone; (0, 0) of what `decode` will refuse."""
    if not isinstance(picture, bytes):
        return picture.shape[1], picture.shape[0]
    try:
        with Image.open(io.BytesIO(picture), formats=list(_FORMATS)) as opened:
            turned = opened.getexif().get(_ORIENTATION, 1) >= _ON_ITS_SIDE
            return opened.size[::-1] if turned else opened.size
    except Exception:  # a hostile file can make a decoder raise nearly anything
        return 0, 0


def square(
    picture: bytes | NDArray[np.uint8],
    size: int,
    *,
    formats: Sequence[str] = _FORMATS,
    most_pixels: int = _MOST_PIXELS,
) -> Image.Image:
    """The middle of one picture as RGB of `size`²; raises whatever the decoder raises on a file
    that is none."""
    if isinstance(picture, bytes):
        opened: Image.Image = Image.open(io.BytesIO(picture), formats=list(formats))
        # known from the header, before anything is unpacked
        if opened.width * opened.height > most_pixels:
            raise ValueError(f"{opened.width} × {opened.height} pixels are too many")
        ImageOps.exif_transpose(opened, in_place=True)
    else:
        opened = Image.fromarray(picture)
    image = opened.convert("RGB")
    if image.size == (size, size):
        return image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return image.crop(box).resize((size, size), Image.Resampling.LANCZOS)
