"""The client's side of a cell: its network, its batch, and the update that it sends after its
defense.

The photos that a cell's clients train on, and which of them.
"""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unsum.active import Reader, modify
from unsum.audit.round import Sent, send
from unsum.client import mixup, smooth_labels
from unsum.client.capture import capture
from unsum.data import embedded_batch, photo_count, read_photos
from unsum.defend import Defense, aggregate, parse_defense
from unsum.errors import UnsumError
from unsum_bench.declare import NONE, Cell, Network
from unsum_bench.material import Material
from unsum_bench.networks import build

_RATE, _BATCH = 3e-3, 32  # of the training of networks that are declared as trained


@dataclass(frozen=True)
class CellRound:
    """What was drawn for the cell, what the client sent, and the reader of a server that changed
    the model first."""

    drawn: Drawn
    sent: Sent
    reader: Reader | None

    @property
    def count(self) -> int:
        """Samples behind the update, which a server that plans its rounds knows."""
        return len(self.sent.images)


def play(cell: Cell, material: Material) -> CellRound:
    """One round; the batch depends on the cell's seed alone, the defense's noise on seed and
    defense.

    Under secure aggregation the round has several clients, and everybody's samples are at stake:
    the first one's are those of the cell without it.
    """
    model, train = network(cell, material), cell.network.train
    clients = clients_of(cell.defense)
    drawn = draw(replace(cell, batch=clients * cell.batch), material)
    images, targets = drawn.images.to(material.device), drawn.targets.to(material.device)
    reader = None
    if cell.attack.family == "server":
        options: dict[str, Any] = dict(cell.attack.options)
        model, reader = modify(
            model, cell.attack.name, shape=tuple(images.shape[1:]), seed=cell.seed, **options
        )
    seed = cell.seed + zlib.crc32(cell.defense.encode())
    if clients == 1:
        sent = send(model, images, targets, defenses(cell.defense), train=train, seed=seed)
    else:
        torch.manual_seed(seed)
        parts = zip(images.split(cell.batch), targets.split(cell.batch), strict=True)
        update = aggregate([capture(model, *part, train=train) for part in parts])
        sent = Sent(model, images, targets, update, train, seed, clients)
    model.train(train)
    return CellRound(drawn, sent, reader)


def network(cell: Cell, material: Material) -> nn.Module:
    """The cell's network on its device, trained on the data where the declaration says so."""
    if cell.network.epochs:
        return copy.deepcopy(_trained(cell.network, material.data_of(cell))).to(material.device)
    return build(cell.network, seed=cell.seed, weights=material.weights).to(material.device)


@lru_cache(maxsize=2)
def _trained(network: Network, data: str | None) -> nn.Module:
    """The network after its epochs of Adam, in eval mode."""
    photos, labels = load(data, network.size)
    model = build(network, seed=0, weights=None).train()
    labels = labels % network.classes
    optimizer = torch.optim.Adam(model.parameters(), _RATE)
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad():
        for _ in range(network.epochs):
            for batch in torch.randperm(len(labels), generator=generator).split(_BATCH):
                loss = nn.functional.cross_entropy(
                    model(photos[batch].float() / 255), labels[batch]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model.eval()


def clients_of(defense: str) -> int:
    """How many clients' updates the server sees the mean of."""
    name, _, strength = defense.partition(":")
    # else parsing says what is wrong
    return int(strength) if name == "secagg" and strength.isdecimal() else 1


def defenses(text: str) -> list[Defense]:
    return [] if text == NONE else [parse_defense(text)]


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
    """(N, 3, s, s) uint8 images and (N,) class numbers of all photos of the source; each embedded
    one is a class of its own."""
    if data is None:
        images = embedded_batch(photo_count(), image_size=size).images
        return (images * 255).round().to(torch.uint8), torch.arange(len(images))
    found = read_photos(data, size=size)
    return found.images, found.labels


def draw(cell: Cell, material: Material) -> Drawn:
    """A batch of labels drawn at random with repetition, or of distinct ones as far as the classes
    reach, of which `same` then share one; every attack gets the same.

    Photos of more classes than the network has carry their class number modulo the network's.
    """
    photos, classes = load(material.data_of(cell), cell.network.size)
    C, B = cell.network.classes, cell.batch
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(cell.seed))
    labels = classes[order] % C
    if cell.random_labels:
        places, chosen = _at_random(labels, B, C, cell.seed)
    else:
        # The first photo of every label, in the order of their places.
        distinct = sorted(np.unique(labels.numpy(), return_index=True)[1].tolist())
        places = (distinct if B <= C else list(range(len(labels))))[:B]
        chosen = labels[places].clone()
    if len(places) < B:
        kind = " of distinct classes" if B <= C and not cell.random_labels else ""
        raise UnsumError(
            f"This cell needs {B} photos{kind}, and the data have {len(places)}; give more with "
            "--data."
        )
    chosen[: cell.same] = chosen[0]
    rest = torch.ones(len(order), dtype=torch.bool)
    rest[places] = False
    more, other_labels = order[rest][: max(B, _AUXILIARY)], labels[rest][: max(B, _AUXILIARY)]
    images, others = _floats(photos[order[places]]), _floats(photos[more])
    images, targets = _softened(cell, images, chosen, others[:B], other_labels)
    auxiliary = (others[:_AUXILIARY], other_labels[:_AUXILIARY])
    return Drawn(images, targets, chosen if targets.ndim == 1 else targets.argmax(1), auxiliary)


def _at_random(labels: Tensor, B: int, C: int, seed: int) -> tuple[list[int], Tensor]:
    """B labels drawn with repetition, and a photo for each: of its own class while there is one,
    else any that is left."""
    wanted = torch.randint(C, (B,), generator=torch.Generator().manual_seed(seed + 1))
    left: dict[int, list[int]] = {}
    for place, label in enumerate(labels.tolist()):
        left.setdefault(label, []).append(place)
    found = [left[label].pop(0) if left.get(label) else None for label in wanted.tolist()]
    spare = sorted(place for places in left.values() for place in places)
    places = [spare.pop(0) if place is None and spare else place for place in found]
    return [place for place in places if place is not None], wanted


def _softened(
    cell: Cell, images: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Smoothed by ε uniform in 0…0.5, or mixed with another photo by a weight uniform in 0…1, as in
    the soft-label paper."""
    if cell.labels == "hard":
        return images, labels
    B, C = len(images), cell.network.classes
    weight = torch.rand(B, generator=torch.Generator().manual_seed(cell.seed + 1))
    if cell.labels == "smooth":
        rows = [
            smooth_labels(labels[i : i + 1], float(weight[i]) * _LARGEST_SMOOTHING, C)
            for i in range(B)
        ]
        return images, torch.cat(rows)
    both, all_labels = torch.cat([images, others]), torch.cat([labels, other_labels[:B]])
    if len(both) < 2 * B:
        raise UnsumError(
            f"Mixup of {B} photos needs {B} others, and the data have {len(both) - B}; give more "
            "with --data."
        )
    partner = torch.arange(len(both)).roll(-B)
    mixed, blended = mixup(
        both, all_labels, C, weight=torch.cat([weight, torch.ones(B)]), partner=partner
    )
    return mixed[:B], blended[:B]


def _floats(images: Tensor) -> Tensor:
    return images.float() / 255
