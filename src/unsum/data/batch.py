"""One client's batch out of data of the user's own, wherever they lie."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from unsum.data.datasets import hugging_face_source, torchvision_source
from unsum.data.embedded import Batch
from unsum.data.pictures import decode, numbered
from unsum.data.sources import Source, open_source
from unsum.errors import UnsumError


def open_data(spec: str | Path) -> Source:
    """A folder, tar or npz; `torchvision:NAME:ROOT`; or `hf:PATH`."""
    kind, _, rest = str(spec).partition(":")
    if kind == "torchvision":
        name, _, root = rest.partition(":")
        return torchvision_source(name, root)
    if kind == "hf":
        return hugging_face_source(Path(rest))
    return open_source(Path(spec))


def class_names_of(source: Source) -> list[str]:
    return numbered([source], source.classes)[0]


def client_batch(source: Source, size: int, *, image_size: int, same_label: int = 0, seed: int = 0) -> Batch:
    """`size` photos of the source, the first ones after shuffling by `seed`; of them, `same_label` of one class.

    Photos keep their own labels. With `same_label` the class of the first photo that has so many gives them, and all others
    come from other classes; 0 takes photos as they come.
    """
    class_names, labels = numbered([source], source.classes)
    places = _places(labels, size, same_label, seed)
    pictures = zip([source.names[i] for i in places], source.chosen(places), strict=True)
    images = torch.stack([decode(name, picture, image_size) for name, picture in pictures])
    return Batch(images.float() / 255, labels[places], [source.names[i] for i in places], class_names)


def _places(labels: Tensor, size: int, same_label: int, seed: int) -> list[int]:
    if not 1 <= size <= len(labels):
        raise UnsumError(f"The data hold {len(labels)} photos; choose a batch of 1 to {len(labels)}, not {size}.")
    if not 0 <= same_label <= size:
        raise UnsumError(f"At most {size} photos of a batch of {size} can share a label, not {same_label}.")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    if same_label == 0:
        return [int(place) for place in order[:size]]
    shuffled = labels[order]
    counts = torch.bincount(labels)
    large = counts[shuffled] >= same_label
    if not bool(large.any()):
        raise UnsumError(f"No class of the data has {same_label} photos; its largest has {int(counts.max())}.")
    shared = shuffled[large.nonzero()[0, 0]]
    alike, others = order[shuffled == shared][:same_label], order[shuffled != shared][: size - same_label]
    if len(others) < size - same_label:
        raise UnsumError(
            f"Only {len(others)} photos of other classes are left beside {same_label} of one; ask for fewer."
        )
    return [int(place) for place in torch.cat([alike, others])]
