"""What a page asks for, checked entry by entry before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from unsum.app.menu import offer
from unsum.app.shelf import Photo, Shelf
from unsum.data import Batch, share_label, tags
from unsum.defend import Defense
from unsum.errors import UnsumError

MOST_PHOTOS = 16


@dataclass(frozen=True)
class Order:
    """One round to play: the client's batch, what the photos are called on the page, and the defense."""

    truth: Batch
    keys: list[str]
    defense: Defense | None


def read_order(content: Any, shelf: Shelf, page: str) -> Order:
    """`{"photos": [{"id", "label"}], "same_label": 0, "defense": null or {"name", "stop"}}`, or one sentence."""
    if not isinstance(content, dict):
        raise UnsumError("A round is asked for with a JSON object.")
    rows = content.get("photos")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_PHOTOS:
        raise UnsumError(f"Choose 1 to {MOST_PHOTOS} photos.")
    keys = [_text(row, "id") for row in rows]
    if len(set(keys)) < len(keys):
        raise UnsumError("A photo can be chosen only once.")
    photos = [shelf.get(key, page) for key in keys]
    names = tags()
    labels = [_label(row, photo, names) for row, photo in zip(rows, photos, strict=True)]
    labels = share_label(labels, _whole(content.get("same_label", 0), "same_label"), len(names))
    images = torch.stack([photo.pixels for photo in photos])
    truth = Batch(images, torch.tensor(labels), [photo.title for photo in photos], names)
    return Order(truth, keys, _defense(content.get("defense")))


def _label(row: dict[str, Any], photo: Photo, names: list[str]) -> int:
    if row.get("label") is None and photo.label is not None:
        return photo.label
    label = _text(row, "label")
    if label not in names:
        raise UnsumError(f"There is no label {label[:40]!r}; choose one of the {len(names)} tags.")
    return names.index(label)


def _defense(content: Any) -> Defense | None:
    if content is None:
        return None
    return offer(_text(content, "name")).at(_whole(content.get("stop", 0), "stop"))


def _text(content: Any, field: str) -> str:
    value = content.get(field) if isinstance(content, dict) else None
    if not isinstance(value, str):
        raise UnsumError(f"The field {field!r} must be a text.")
    return value


def _whole(value: Any, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UnsumError(f"The field {field!r} must be a whole number.")
    return value
