"""The photos that a page can choose from: the embedded ones, and its own, which stay in memory and
are never written."""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unsum.audit.pictures import data_uri
from unsum.data import embedded_batch, photo_count
from unsum.data.pictures import square
from unsum.errors import UnsumError

MOST_OWN = 16  # photos of one page
MOST_KEPT = 128  # photos of all pages together; then the oldest go
MOST_BYTES = 20 * 1024 * 1024  # of one file
MOST_PIXELS = 50_000_000  # what phones make; known from the header, before anything is unpacked
# told by content: a name proves nothing, and other decoders stay closed
_FORMATS = ("JPEG", "PNG", "WEBP")
_LONGEST_TITLE = 60  # characters


@dataclass(frozen=True)
class Photo:
    """(3, s, s) pixels in [0, 1], what the photo is called, and the number of its class; None if
    its owner says it later."""

    title: str
    pixels: Tensor
    label: int | None
    page: str | None = None  # whose it is; None for everybody's


class Shelf:
    """Photos by an identifier that cannot be guessed; a page sees the embedded ones and its own."""

    def __init__(self, size: int) -> None:
        self._size = size
        batch = embedded_batch(photo_count(), image_size=size)
        rows = zip(batch.titles, batch.images, batch.targets.tolist(), strict=True)
        self.embedded = {f"embedded-{i}": Photo(*row) for i, row in enumerate(rows)}
        self._own: OrderedDict[str, Photo] = OrderedDict()

    def add(self, content: bytes, name: str, page: str) -> tuple[str, Photo]:
        """Keep one more photo of a page, cropped to a square in its middle."""
        if sum(photo.page == page for photo in self._own.values()) >= MOST_OWN:
            raise UnsumError(
                f"This page holds {MOST_OWN} photos of your own already; remove one first."
            )
        last = re.split(r"[\\/]", name)[-1]  # a name from a browser is text and nothing else
        title = "".join(c for c in last if c.isprintable()).strip()[:_LONGEST_TITLE] or "own photo"
        try:
            picture = square(content, self._size, formats=_FORMATS, most_pixels=MOST_PIXELS)
        except Exception as error:  # a hostile file can make a decoder raise nearly anything
            raise UnsumError(
                f"{title!r} cannot be read as a JPEG, PNG or WebP photo of at most "
                f"{MOST_PIXELS // 10**6} million pixels; choose another file."
            ) from error
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
        key, photo = secrets.token_urlsafe(12), Photo(title, pixels, None, page)
        self._own[key] = photo
        while len(self._own) > MOST_KEPT:
            self._own.popitem(last=False)
        return key, photo

    def remove(self, key: str, page: str) -> None:
        self.get(key, page)
        self._own.pop(key, None)

    def get(self, key: str, page: str) -> Photo:
        photo = self.embedded.get(key) or self._own.get(key)
        if photo is None or photo.page not in (None, page):
            raise UnsumError("One of the chosen photos is no longer kept here; add it again.")
        return photo


def shown(picture: Tensor | None) -> str | None:
    """As PNG that a page can show without asking for it: it goes to this very machine, so soon
    rather than small."""
    return data_uri(picture, compress_level=1)
