"""What a defense costs: accuracy after a fixed federated training of a small network on a real task.

Four clients hold parts of the task. In every round each sends one defended gradient, and the server moves the model by their
mean with Adam, which does not care about an update's scale: clipping or signs are not charged for a learning rate that no longer
fits. For the same reason the clients may scale their gradients to the size of the audited model's, so that a given noise is as
loud here as there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from unsum.audit.sweep.pictures import Pictures
from unsum.client import capture
from unsum.client.step import AnyDefense, Stage, ordered
from unsum.defend import Defense, aggregate
from unsum.errors import UnsumError
from unsum.update import Update

CLIENTS, BATCH, ROUNDS, RUNS = 4, 32, 60, 3
_LEARNING_RATE = 1e-2  # at the start; it falls evenly to zero, so that the end is less a matter of luck
_PATIENCE = 60.0  # seconds that one strength may take; Soteria would take several minutes


@dataclass(frozen=True)
class Accuracy:
    """Share of right answers on the test pictures: the mean of several trainings, and how far they spread."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Task:
    """What was trained, for the record."""

    about: str
    classes: int
    train_pictures: int
    test_pictures: int
    clients: int
    batch: int
    rounds: int
    runs: int
    chance: float
    gradient_scale: float  # by which clients multiply, so that their updates are as large as the audited one
    weights: int  # of the small network
    audited_weights: int


def train(pictures: Pictures, defenses: Iterable[Defense], *, scale: float = 1.0, seed: int = 0) -> Accuracy:
    """Accuracy after the federated training, with every client's update defended; the same seeds for every defense."""
    chain = _scaled(ordered(list(defenses)), scale)
    results = [_train_once(pictures, chain, seed + run) for run in range(RUNS)]
    return Accuracy(math.fsum(results) / len(results), min(results), max(results))


def describe(pictures: Pictures, scale: float, audited: nn.Module) -> Task:
    return Task(
        about=pictures.about,
        classes=pictures.classes,
        train_pictures=len(pictures.train[0]),
        test_pictures=len(pictures.test[0]),
        clients=CLIENTS,
        batch=BATCH,
        rounds=ROUNDS,
        runs=RUNS,
        chance=pictures.chance,
        gradient_scale=scale,
        weights=_weights(_network(pictures.classes, 0)),
        audited_weights=_weights(audited),
    )


def scale_to(pictures: Pictures, update: Update, seed: int = 0) -> float:
    """The factor that makes the first gradient of the task as large, entry by entry on average, as `update`."""
    model = _network(pictures.classes, seed)
    images, labels = pictures.train
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:BATCH]
    own = _entry_size(capture(model, images[chosen], labels[chosen]))
    audited = _entry_size(update)
    return audited / own if own > 0 and math.isfinite(audited / own) and audited > 0 else 1.0


def _train_once(pictures: Pictures, chain: list[AnyDefense], seed: int) -> float:
    model = _network(pictures.classes, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE, eps=1e-15)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1 / ROUNDS, ROUNDS)
    generator = torch.Generator().manual_seed(seed)
    images, labels = pictures.train
    holdings = torch.randperm(len(images), generator=generator).chunk(CLIENTS)
    torch.manual_seed(seed)  # what the defenses draw
    start = time.perf_counter()
    for done in range(ROUNDS):
        updates = []
        for held in holdings:
            batch = held[torch.randperm(len(held), generator=generator)[:BATCH]]
            updates.append(capture(model, images[batch], labels[batch], defenses=chain))
        mean = aggregate(updates)
        for name, parameter in model.named_parameters():
            parameter.grad = mean.gradients.get(name)  # what is not sent is not trained
        optimizer.step()
        falling.step()
        _check_pace(time.perf_counter() - start, done + 1)
    with torch.no_grad():
        right = model(pictures.test[0]).argmax(1) == pictures.test[1]
    return float(right.float().mean())


def _check_pace(elapsed: float, rounds: int) -> None:
    expected = elapsed / rounds * ROUNDS * RUNS
    if rounds == 2 and expected > _PATIENCE:
        raise UnsumError(
            f"Training with it would take about {expected:.0f} s, more than the {_PATIENCE:.0f} s allowed."
        )


def _network(classes: int, seed: int) -> nn.Sequential:
    """Small, and without BatchNorm, so that every defense can train it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.AvgPool2d(4),
            nn.Flatten(),
            nn.Linear(128, classes),
        )


def _scaled(parts: list[AnyDefense], factor: float) -> list[AnyDefense]:
    """The chain with the scaling where a gradient first exists: before what changes the update."""

    def scale(update: Update) -> Update:
        return update.map(lambda _name, gradient: gradient * factor)

    first = next(
        (i for i, part in enumerate(parts) if getattr(part, "stage", Stage.UPDATE) == Stage.UPDATE), len(parts)
    )
    return [*parts[:first], scale, *parts[first:]]


def _weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _entry_size(update: Update) -> float:
    """Root mean square over all entries."""
    squares = math.fsum(float(g.double().square().sum()) for g in update.gradients.values())
    return math.sqrt(squares / sum(g.numel() for g in update.gradients.values()))
