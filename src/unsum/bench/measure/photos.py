"""The photos that a cell's clients train on, and which of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from unsum.bench.declare import Cell
from unsum.bench.material import Material
from unsum.client import mixup, smooth_labels
from unsum.data import embedded_batch, photo_count, read_photos
from unsum.errors import UnsumError

_AUXILIARY = 64  # labeled photos of the attacker's own, for the methods that need some
_LARGEST_SMOOTHING = 0.5  # ε of labels, drawn evenly up to it, as in the soft-label paper


@dataclass(frozen=True)
class Drawn:
    """A client's batch, and labeled photos that it does not hold."""

    images: Tensor
    targets: Tensor  # (B,) class numbers, or (B, C) rows where labels are soft
    labels: Tensor  # (B,) class numbers: the largest entry of each row
    others: tuple[Tensor, Tensor]


@lru_cache(maxsize=3)
def load(data: str | None, size: int) -> tuple[Tensor, Tensor]:
    """(N, 3, s, s) uint8 images and (N,) class numbers of all photos of the source; each embedded one is a class of its own."""
    if data is None:
        images = embedded_batch(photo_count(), image_size=size).images
        return (images * 255).round().to(torch.uint8), torch.arange(len(images))
    found = read_photos(data, size=size)
    return found.images, found.labels


def draw(cell: Cell, material: Material) -> Drawn:
    """A batch of distinct labels as far as the classes reach, of which `same` then share one; every attack gets the same.

    Photos of more classes than the network has carry their class number modulo the network's.
    """
    photos, classes = load(material.data_of(cell), cell.network.size)
    C, B = cell.network.classes, cell.batch
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(cell.seed))
    labels = classes[order] % C
    places = _distinct(labels) if B <= C else list(range(len(labels)))
    if len(places) < B:
        raise UnsumError(
            f"This cell needs {B} photos{' of distinct classes' if B <= C else ''}, and the data have {len(places)}; "
            "give more with --data."
        )
    rest = torch.ones(len(order), dtype=torch.bool)
    rest[places[:B]] = False
    others = (_floats(photos[order[rest]][:_AUXILIARY]), labels[rest][:_AUXILIARY])
    images, chosen = _floats(photos[order[places[:B]]]), labels[places[:B]].clone()
    chosen[: cell.same] = chosen[0]
    images, targets = _softened(cell, images, chosen, _floats(photos[order[rest]]), labels[rest])
    return Drawn(images, targets, chosen if targets.ndim == 1 else targets.argmax(1), others)


def _distinct(labels: Tensor) -> list[int]:
    """The first place of every label, in the order of their places."""
    first: dict[int, int] = {}
    for place, label in enumerate(labels.tolist()):
        first.setdefault(label, place)
    return list(first.values())


def _softened(
    cell: Cell, images: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Smoothed by ε uniform in 0…0.5, or mixed with another photo by a weight uniform in 0…1, as in the soft-label paper."""
    if cell.labels == "hard":
        return images, labels
    B, C = len(images), cell.network.classes
    weight = torch.rand(B, generator=torch.Generator().manual_seed(cell.seed + 1))
    if cell.labels == "smooth":
        rows = [smooth_labels(labels[i : i + 1], float(weight[i]) * _LARGEST_SMOOTHING, C) for i in range(B)]
        return images, torch.cat(rows)
    both, all_labels = torch.cat([images, others[:B]]), torch.cat([labels, other_labels[:B]])
    if len(both) < 2 * B:
        raise UnsumError(
            f"Mixup of {B} photos needs {B} others, and the data have {len(both) - B}; give more with --data."
        )
    partner = torch.arange(len(both)).roll(-B)
    mixed, blended = mixup(both, all_labels, C, weight=torch.cat([weight, torch.ones(B)]), partner=partner)
    return mixed[:B], blended[:B]


def _floats(images: Tensor) -> Tensor:
    return images.float() / 255
