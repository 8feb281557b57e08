"""The embedded photos as a client's private batch, labeled with tags of a photo-tagging task."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from unsum.errors import UnsumError

_PHOTOS = files("unsum.data") / "photos"


@dataclass(frozen=True)
class Batch:
    """(B, 3, s, s) images in [0, 1] with their targets, what each photo is called, and what the classes are called."""

    images: Tensor
    targets: Tensor
    titles: list[str]
    class_names: list[str]


def tags() -> list[str]:
    """The 100 classes of the default task."""
    return (files("unsum.data") / "tags.txt").read_text("utf-8").split()


def photo_count() -> int:
    return len(_manifest())


def embedded_batch(size: int = 8, *, image_size: int, same_label: int = 0) -> Batch:
    """The first `size` embedded photos; the first `same_label` of them relabeled to one shared class.

    With `same_label` 0 every photo keeps its own tag; two of the first eight happen to be mountains.
    """
    rows = _manifest()
    if not 1 <= size <= len(rows):
        raise UnsumError(f"There are {len(rows)} embedded photos; choose a batch of 1 to {len(rows)}, not {size}.")
    names = tags()
    chosen = rows[:size]
    labels = share_label([names.index(row["label"]) for row in chosen], same_label, len(names))
    images = torch.stack([_photo(row["file"], image_size) for row in chosen])
    return Batch(images, torch.tensor(labels), [row["title"] for row in chosen], names)


def share_label(labels: list[int], count: int, classes: int) -> list[int]:
    """The labels of a batch, the first `count` of them changed to one that no other sample carries."""
    if not 0 <= count <= len(labels):
        raise UnsumError(f"At most {len(labels)} photos of a batch of {len(labels)} can share a label, not {count}.")
    if count == 0:
        return list(labels)
    # The others must not happen to carry the shared tag too, or more photos would share it than were asked for.
    others = labels[count:]
    shared = labels[0] if labels[0] not in others else next(i for i in range(classes) if i not in others)
    return [shared] * count + others


def _manifest() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads((_PHOTOS / "manifest.json").read_text("utf-8"))
    return rows


def _photo(name: str, size: int) -> Tensor:
    with (_PHOTOS / name).open("rb") as file:
        image = Image.open(file).convert("RGB").resize((size, size), Image.Resampling.LANCZOS)
    pixels: Tensor = pil_to_tensor(image)
    return pixels.float() / 255
