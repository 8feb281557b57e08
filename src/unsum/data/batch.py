"""One client's batch: of the embedded photos, labeled with tags of a photo-tagging task, or of the
user's own data."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unsum.data.pictures import decode, measured, numbered
from unsum.data.sources import Source
from unsum.data.table_schema import TableSchema
from unsum.errors import UnsumError

_PHOTOS = files("unsum.data") / "photos"


@dataclass(frozen=True)
class Batch:
    """(B, 3, s, s) images in [0, 1] with their targets, what each photo is called, and what the
    classes are called.

    `resized` is a sentence where photos had another size, or what was done to a table. The rows of
    a table, which `schema` describes, are (B, width).
    """

    images: Tensor
    targets: Tensor
    titles: list[str]
    class_names: list[str]
    resized: str = ""
    schema: TableSchema | None = None


def tags() -> list[str]:
    """The 100 classes of the default task."""
    return (files("unsum.data") / "tags.txt").read_text("utf-8").split()


def photo_count() -> int:
    return len(_manifest())


def embedded_batch(
    size: int = 8, *, image_size: int, same_label: int = 0, classes: int | None = None
) -> Batch:
    """The first `size` embedded photos; the first `same_label` of them relabeled to one shared
    class.

    With `same_label` 0 every photo keeps its own tag; two of the first eight happen to be
    mountains. A model whose `classes` are not these tags gets labels counted around them, without
    names.
    """
    rows = _manifest()
    if not 1 <= size <= len(rows):
        raise UnsumError(
            f"There are {len(rows)} embedded photos; choose a batch of 1 to {len(rows)}, not "
            f"{size}."
        )
    names = tags()
    chosen = rows[:size]
    labels = [names.index(row["label"]) for row in chosen]
    if classes is not None:
        met = list(dict.fromkeys(labels))
        labels, names = (
            [met.index(label) % classes for label in labels],
            [f"class {c}" for c in range(classes)],
        )
    labels = share_label(labels, same_label, len(names))
    images = torch.stack([_photo(row["file"], image_size) for row in chosen])
    return Batch(images, torch.tensor(labels), [row["title"] for row in chosen], names)


def share_label(labels: list[int], count: int, classes: int) -> list[int]:
    """The labels of a batch, the first `count` of them changed to one that no other sample
    carries."""
    if not 0 <= count <= len(labels):
        raise UnsumError(
            f"At most {len(labels)} photos of a batch of {len(labels)} can share a label, not "
            f"{count}."
        )
    if count == 0:
        return list(labels)
    # The others must not happen to carry the shared tag too, or more photos would share it than
    # were asked for.
    others = labels[count:]
    shared = (
        labels[0] if labels[0] not in others else next(i for i in range(classes) if i not in others)
    )
    return [shared] * count + others


def _manifest() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads((_PHOTOS / "manifest.json").read_text("utf-8"))
    return rows


def _photo(name: str, size: int) -> Tensor:
    with (_PHOTOS / name).open("rb") as file:
        image = Image.open(file).convert("RGB").resize((size, size), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def class_names_of(source: Source) -> list[str]:
    return numbered([source], source.classes)[0]


def client_batch(
    source: Source, size: int, *, image_size: int, same_label: int = 0, seed: int = 0
) -> Batch:
    """`size` photos of the source, the first ones after shuffling by `seed`; of them, `same_label`
    of one class.

    Photos keep their own labels. With `same_label` the class of the first photo that has so many
    gives them, and all others come from other classes; 0 takes photos as they come.
    """
    class_names, labels = numbered([source], source.classes)
    places = places_of(labels, size, same_label, seed)
    names, pictures = [source.names[i] for i in places], source.chosen(places)
    images = torch.stack(
        [decode(*named, image_size) for named in zip(names, pictures, strict=True)]
    )
    resized = _resized([measured(picture) for picture in pictures], image_size)
    return Batch(images.float() / 255, labels[places], names, class_names, resized)


def own_sides(source: Source, size: int, *, same_label: int = 0, seed: int = 0) -> list[int]:
    """The side that all photos of a batch share, if they are square and do."""
    places = places_of(numbered([source], source.classes)[1], size, same_label, seed)
    sizes = {measured(picture) for picture in source.chosen(places)}
    return [side for side, other in sizes if len(sizes) == 1 and side == other]


def _resized(sizes: list[tuple[int, int]], side: int) -> str:
    """A sentence, if photos of these sizes are not of that side."""
    others = Counter(size for size in sizes if size != (side, side))
    if not others:
        return ""
    (width, height), _ = others.most_common(1)[0]
    more = "" if len(others) == 1 else " and other sizes"
    cut = "cut to their middle square and " if any(w != h for w, h in others) else ""
    return (
        f"Photos of {width}×{height}{more} are {cut}resized to {side}×{side}, which the model "
        "takes; --image-size asks for another side."
    )


def places_of(
    labels: Tensor, size: int, same_label: int, seed: int, *, what: str = "photos"
) -> list[int]:
    """Which of the samples with these labels a client holds."""
    if not 1 <= size <= len(labels):
        raise UnsumError(
            f"The data hold {len(labels)} {what}; choose a batch of 1 to {len(labels)}, not {size}."
        )
    if not 0 <= same_label <= size:
        raise UnsumError(
            f"At most {size} {what} of a batch of {size} can share a label, not {same_label}."
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    if same_label == 0:
        return [int(place) for place in order[:size]]
    shuffled = labels[order]
    counts = torch.bincount(labels)
    large = counts[shuffled] >= same_label
    if not bool(large.any()):
        raise UnsumError(
            f"No class of the data has {same_label} {what}; its largest has {int(counts.max())}."
        )
    shared = shuffled[large.nonzero()[0, 0]]
    alike, others = (
        order[shuffled == shared][:same_label],
        order[shuffled != shared][: size - same_label],
    )
    if len(others) < size - same_label:
        raise UnsumError(
            f"Only {len(others)} {what} of other classes are left beside {same_label} of one; ask "
            "for fewer."
        )
    return [int(place) for place in torch.cat([alike, others])]
