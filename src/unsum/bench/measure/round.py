"""The client's side of a cell: its network, its batch, and the update that it sends after its defense."""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from unsum.active import Reader, modify
from unsum.audit.round import Sent, send
from unsum.bench.declare import NONE, Cell, Network
from unsum.bench.material import Material
from unsum.bench.measure.photos import Drawn, draw, load
from unsum.bench.networks import build
from unsum.client.capture import capture
from unsum.defend import Defense, aggregate, parse_defense

_RATE, _BATCH = 3e-3, 32  # of the training of networks that are declared as trained


@dataclass(frozen=True)
class CellRound:
    """What was drawn for the cell, what the client sent, and the reader of a server that changed the model first."""

    drawn: Drawn
    sent: Sent
    reader: Reader | None

    @property
    def count(self) -> int:
        """Samples behind the update, which a server that plans its rounds knows."""
        return len(self.sent.images)


def play(cell: Cell, material: Material) -> CellRound:
    """One round; the batch depends on the cell's seed alone, the defense's noise on seed and defense.

    Under secure aggregation the round has several clients, and everybody's samples are at stake: the first one's are those of
    the cell without it.
    """
    model, train = network(cell, material), cell.network.train
    clients = clients_of(cell.defense)
    drawn = draw(replace(cell, batch=clients * cell.batch), material)
    images, targets = drawn.images.to(material.device), drawn.targets.to(material.device)
    reader = None
    if cell.attack.family == "server":
        options: dict[str, Any] = dict(cell.attack.options)
        model, reader = modify(model, cell.attack.name, shape=tuple(images.shape[1:]), seed=cell.seed, **options)
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
                loss = nn.functional.cross_entropy(model(photos[batch].float() / 255), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model.eval()


def clients_of(defense: str) -> int:
    """How many clients' updates the server sees the mean of."""
    name, _, strength = defense.partition(":")
    return int(strength) if name == "secagg" and strength.isdecimal() else 1  # else parsing says what is wrong


def defenses(text: str) -> list[Defense]:
    return [] if text == NONE else [parse_defense(text)]
