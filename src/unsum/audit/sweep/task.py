"""What a defence costs: accuracy after a fixed federated training of a small network on a real task.

Four clients hold parts of the task. In every round each sends one defended gradient, and the server moves the model by their mean with
Adam, which does not care about an update's scale: clipping or signs are not charged for a learning rate that no longer fits. For
the same reason the clients may scale their gradients to the size of the audited model's, so that a given noise is as loud here
as there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from unsum.client import capture
from unsum.client.step import AnyDefense, Stage, ordered
from unsum.data import embedded_batch, photo_count
from unsum.defend import Defense, aggregate
from unsum.errors import UnsumError
from unsum.update import Update

SIDE = 32  # of the pictures, in pixels
CLIENTS, BATCH, ROUNDS, RUNS = 4, 32, 60, 3
_LEARNING_RATE = (
    1e-2  # at the start; it falls evenly to zero, which makes the accuracy at the end less a matter of luck
)
_PATIENCE = 60.0  # seconds that one strength may take; Soteria would take several minutes
_PHOTO_SIDE = 256
_MOST = 4096  # pictures taken from the user's file: more would change the time, not the answer
_FEWEST = 64


@dataclass(frozen=True)
class Pictures:
    """A task: (n, 3, 32, 32) pictures in [0, 1] with class numbers, to learn from and to be tested on."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    about: str

    @cached_property
    def classes(self) -> int:
        return int(max(self.train[1].max(), self.test[1].max())) + 1

    @property
    def chance(self) -> float:
        """The accuracy of always answering the class that is most frequent in the test."""
        return float(self.test[1].bincount().max()) / len(self.test[1])


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


def photo_tiles() -> Pictures:
    """Which of the embedded photos is this tile from? Tiles as on a chessboard: learn from the black, test on the white."""
    count = photo_count()
    photos = embedded_batch(count, image_size=_PHOTO_SIDE).images
    tiles = photos.unfold(2, SIDE, SIDE).unfold(3, SIDE, SIDE).permute(0, 2, 3, 1, 4, 5)
    rows = torch.arange(_PHOTO_SIDE // SIDE)
    black = (rows[:, None] + rows[None, :]) % 2 == 0
    labels = torch.arange(count)[:, None].expand(-1, int(black.sum())).flatten()
    return Pictures(
        (tiles[:, black].flatten(0, 1), labels),
        (tiles[:, ~black].flatten(0, 1), labels),
        f"Which of the {count} embedded photos is this {SIDE}×{SIDE} tile from? Tested on tiles that no client has.",
    )


def pictures_from_file(path: str | Path, *, seed: int = 0) -> Pictures:
    """A task of the user's own: an .npz file with `images` (n, h, w, 3 or 1) uint8 and `labels` (n,). A quarter is for the test."""
    images, labels = _read(Path(path))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:_MOST]
    numbers = torch.from_numpy(np.unique(labels, return_inverse=True)[1]).long()[order]
    pixels = torch.from_numpy(images)[order].permute(0, 3, 1, 2).float() / 255
    small = nn.functional.interpolate(pixels, (SIDE, SIDE), mode="bilinear", antialias=True)
    small = small.expand(-1, 3, -1, -1)
    test = len(small) // 4
    name = Path(path).name
    return Pictures((small[test:], numbers[test:]), (small[:test], numbers[:test]), f"The labelled pictures in {name}.")


def train(pictures: Pictures, defenses: Iterable[Defense], *, scale: float = 1.0, seed: int = 0) -> Accuracy:
    """Accuracy after the federated training, with every client's update defended; the same seeds for every defence."""
    chain = _scaled(ordered(list(defenses)), scale)
    results = [_train_once(pictures, chain, seed + run) for run in range(RUNS)]
    return Accuracy(math.fsum(results) / len(results), min(results), max(results))


def describe(pictures: Pictures, scale: float) -> Task:
    sizes = len(pictures.train[0]), len(pictures.test[0])
    return Task(
        pictures.about, pictures.classes, *sizes, CLIENTS, BATCH, ROUNDS, RUNS, pictures.chance, gradient_scale=scale
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
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1 / ROUNDS, ROUNDS)
    generator = torch.Generator().manual_seed(seed)
    images, labels = pictures.train
    holdings = torch.randperm(len(images), generator=generator).chunk(CLIENTS)
    torch.manual_seed(seed)  # what the defences draw
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
    """Small, and without BatchNorm, so that every defence can train it."""
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


def _entry_size(update: Update) -> float:
    """Root mean square over all entries."""
    squares = math.fsum(float(g.double().square().sum()) for g in update.gradients.values())
    return math.sqrt(squares / sum(g.numel() for g in update.gradients.values()))


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as content:
            images, labels = content["images"], content["labels"]
    except FileNotFoundError:
        raise UnsumError(f"There is no file {str(path)!r} to train on; check --utility-data.") from None
    except (KeyError, ValueError, OSError, EOFError, TypeError, AttributeError):
        raise UnsumError(
            f"{str(path)!r} cannot be trained on; give an .npz file with the arrays 'images' and 'labels'."
        ) from None
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise UnsumError(
            f"The images in {str(path)!r} must be uint8 of shape (n, height, width, 3 or 1), not {images.dtype} {images.shape}."
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu" or len(np.unique(labels)) < 2:
        raise UnsumError(
            f"The labels in {str(path)!r} must be one whole number per image, of two classes or more, not "
            f"{labels.dtype} {labels.shape} for {len(images)} images."
        )
    if len(images) < _FEWEST:
        raise UnsumError(f"{str(path)!r} holds {len(images)} pictures; at least {_FEWEST} are needed to train on.")
    return images, labels
