"""The client's side of a cell: its network, its batch, and the update that it sends after its defense."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unsum.active import Recipe, modify
from unsum.bench.declare import NONE, Cell
from unsum.bench.material import Material
from unsum.bench.measure.photos import Drawn, draw
from unsum.bench.measure.train import trained
from unsum.bench.networks import build
from unsum.client.capture import capture, capture_trained
from unsum.client.step import in_mode
from unsum.defend import Defense, aggregate, parse_defense
from unsum.head import collect_features
from unsum.update import Update


@dataclass(frozen=True)
class Round:
    """What happened: the model as the client got it, what it trained on, and what it sent. The attack sees model and update."""

    model: nn.Module
    drawn: Drawn
    images: Tensor  # as trained on: other ones where a defense mixes them
    targets: Tensor
    features: Tensor
    update: Update
    recipe: Recipe | None  # of a server that changed the model first

    @property
    def count(self) -> int:
        """Samples behind the update, which a server that plans its rounds knows."""
        return len(self.images)


def play(cell: Cell, material: Material) -> Round:
    """One round; the batch depends on the cell's seed alone, the defense's noise on seed and defense.

    Under secure aggregation the round has several clients, and everybody's samples are at stake: the first one's are those of
    the cell without it.
    """
    model = network(cell, material)
    clients = clients_of(cell.defense)
    drawn = draw(replace(cell, batch=clients * cell.batch), material)
    images, targets = drawn.images.to(material.device), drawn.targets.to(material.device)
    recipe = None
    if cell.attack.family == "server":
        options: dict[str, Any] = dict(cell.attack.options)
        model, recipe = modify(model, cell.attack.name, shape=tuple(images.shape[1:]), seed=cell.seed, **options)
    torch.manual_seed(cell.seed + zlib.crc32(cell.defense.encode()))
    if clients > 1:
        parts = zip(images.split(cell.batch), targets.split(cell.batch), strict=True)
        update = aggregate([capture(model, *part, train=cell.network.train) for part in parts])
    else:
        update, images, targets = capture_trained(
            model, images, targets, train=cell.network.train, defenses=defenses(cell.defense)
        )
    with in_mode(model, cell.network.train):
        features = torch.cat([collect_features(model, part) for part in images.split(cell.batch)])
    return Round(model.train(cell.network.train), drawn, images, targets, features, update, recipe)


def network(cell: Cell, material: Material) -> nn.Module:
    """The cell's network on its device, trained on the data where the declaration says so."""
    if cell.network.epochs:
        return trained(cell.network, material.data if cell.data == "photos" else None).to(material.device)
    return build(cell.network, seed=cell.seed, weights=material.weights).to(material.device)


def clients_of(defense: str) -> int:
    """How many clients' updates the server sees the mean of."""
    name, _, strength = defense.partition(":")
    return int(strength) if name == "secagg" and strength.isdecimal() else 1  # else parsing says what is wrong


def defenses(text: str) -> list[Defense]:
    return [] if text == NONE else [parse_defense(text)]
