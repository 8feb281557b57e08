"""What a defense costs: accuracy after a fixed federated training of a small network on a real
task.

Four clients hold parts of the task. In every round each sends one defended gradient, and the server
moves the model by their mean with Adam, which does not care about an update's scale: clipping or
signs are not charged for a learning rate that no longer fits. For the same reason the clients may
scale their gradients to the size of the audited model's, so that a given noise is as loud here as
there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
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
from unsum.files.array_file import read_npz
from unsum.files.limits import LimitError
from unsum.update import Update

SIDE = 32  # of the pictures, in pixels
_PHOTO_SIDE = 256  # pixels that an embedded photo is read at before it is cut
_MOST = 4096  # pictures taken from the user's file: more would change the time, not the answer
_FEWEST = 64  # pictures of a file, to train and to test on
CLIENTS, BATCH, ROUNDS, RUNS = 4, 32, 60, 3  # of the training, which is run three times
# at the start; it falls evenly to zero, so that the end is less a matter of luck
_LEARNING_RATE = 1e-2
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-15  # of Adam
KEPT = 0.5  # of what is learned beyond guessing: a defense that leaves less ruins the model
_PATIENCE = 60.0  # seconds of work that one strength may take; Soteria would take several minutes


@dataclass(frozen=True)
class Pictures:
    """A task: (n, 3, 32, 32) pictures in [0, 1] with class numbers, to learn from and to be tested
    on."""

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


def photo_tiles() -> Pictures:
    """Which of the embedded photos is this tile from? Tiles as on a chessboard: learn from the
    black, test on the white."""
    count = photo_count()
    photos = embedded_batch(count, image_size=_PHOTO_SIDE).images
    tiles = photos.unfold(2, SIDE, SIDE).unfold(3, SIDE, SIDE).permute(0, 2, 3, 1, 4, 5)
    rows = torch.arange(_PHOTO_SIDE // SIDE)
    black = (rows[:, None] + rows[None, :]) % 2 == 0
    labels = torch.arange(count)[:, None].expand(-1, int(black.sum())).flatten()
    return Pictures(
        (tiles[:, black].flatten(0, 1), labels),
        (tiles[:, ~black].flatten(0, 1), labels),
        (
            f"Which of the {count} embedded photos is this {SIDE}×{SIDE} tile from? Tested on "
            "tiles that no client has."
        ),
    )


def pictures_from_file(path: str | Path, *, seed: int = 0) -> Pictures:
    """A task of the user's own, a quarter for the test: an .npz file with `images` (n, h, w, 3 or
    1) uint8 and `labels` (n,)."""
    images, labels = _read(Path(path))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:_MOST]
    numbers = torch.from_numpy(np.unique(labels, return_inverse=True)[1]).long()[order]
    pixels = torch.from_numpy(images)[order].permute(0, 3, 1, 2).float() / 255
    small = nn.functional.interpolate(pixels, (SIDE, SIDE), mode="bilinear", antialias=True)
    small = small.expand(-1, 3, -1, -1)
    test = len(small) // 4
    name = Path(path).name
    return Pictures(
        (small[test:], numbers[test:]),
        (small[:test], numbers[:test]),
        f"The labeled pictures in {name}.",
    )


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        content = read_npz(path, ("images", "labels"))
        images, labels = content["images"], content["labels"]
    except FileNotFoundError:
        raise UnsumError(
            f"There is no file {str(path)!r} to train on; check --utility-data."
        ) from None
    except LimitError as error:
        raise UnsumError(f"{str(path)!r} is too large to be read: {error}.") from None
    except Exception:  # numpy, zipfile and zlib raise nearly anything on a damaged file
        raise UnsumError(
            f"{str(path)!r} cannot be trained on; give an .npz file with the arrays 'images' and "
            "'labels'."
        ) from None
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise UnsumError(
            f"The images in {str(path)!r} must be uint8 of shape (n, height, width, 3 or 1), not "
            f"{images.dtype} {images.shape}."
        )
    if (
        labels.shape != images.shape[:1]
        or labels.dtype.kind not in "iu"
        or len(np.unique(labels)) < 2
    ):
        raise UnsumError(
            f"The labels in {str(path)!r} must be one whole number per image, of two classes or "
            f"more, not {labels.dtype} {labels.shape} for {len(images)} images."
        )
    if len(images) < _FEWEST:
        raise UnsumError(
            f"{str(path)!r} holds {len(images)} pictures; at least {_FEWEST} are needed to train "
            "on."
        )
    return images, labels


@dataclass(frozen=True)
class Accuracy:
    """Share of right answers on the test pictures: the mean of several trainings, and how far they
    spread."""

    mean: float
    low: float
    high: float


def ruins(before: Accuracy, after: Accuracy, chance: float) -> bool:
    """Whether the model no longer learns: less than `KEPT` of what it learned beyond guessing
    without any defense is left."""
    return after.mean - chance < KEPT * (before.mean - chance)


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
    # by which clients multiply, so that their updates are as large as the audited one
    gradient_scale: float
    weights: int  # of the small network
    audited_weights: int


def train(
    pictures: Pictures, defenses: Iterable[Defense], *, scale: float = 1.0, seed: int = 0
) -> Accuracy:
    """Accuracy after the federated training, with every client's update defended; the same seeds
    for every defense."""
    parts = ordered(list(defenses))
    # The scaling stands where a gradient first exists: before what changes the update.
    stages = [getattr(part, "stage", Stage.UPDATE) for part in parts]
    first = stages.index(Stage.UPDATE) if Stage.UPDATE in stages else len(parts)
    chain = [
        *parts[:first],
        lambda update: update.map(lambda _name, gradient: gradient * scale),
        *parts[first:],
    ]
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
    """The factor that makes the first gradient of the task as large, entry by entry on average, as
    `update`."""
    model = _network(pictures.classes, seed)
    images, labels = pictures.train
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:BATCH]
    own = _entry_size(capture(model, images[chosen], labels[chosen]))
    audited = _entry_size(update)
    return audited / own if own > 0 and math.isfinite(audited / own) and audited > 0 else 1.0


def _train_once(pictures: Pictures, chain: list[AnyDefense], seed: int) -> float:
    model = _network(pictures.classes, seed)
    server = _Adam()
    generator = torch.Generator().manual_seed(seed)
    images, labels = pictures.train
    holdings = torch.randperm(len(images), generator=generator).chunk(CLIENTS)
    torch.manual_seed(seed)  # what the defenses draw
    start = _clocks()
    for done in range(ROUNDS):
        if done == 1:
            # the first round also loads what PyTorch needs: it says nothing of the others
            start = _clocks()
        updates = []
        for held in holdings:
            batch = held[torch.randperm(len(held), generator=generator)[:BATCH]]
            updates.append(capture(model, images[batch], labels[batch], defenses=chain))
        # falls to 1 / ROUNDS of itself
        rate = _LEARNING_RATE * (1 - done / ROUNDS * (1 - 1 / ROUNDS))
        server.step(dict(model.named_parameters()), aggregate(updates).gradients, rate)
        expected = (
            min(now - then for now, then in zip(_clocks(), start, strict=True)) * ROUNDS * RUNS
        )
        if done == 1 and expected > _PATIENCE:
            raise UnsumError(
                f"Training with it would take about {expected:.0f} s, more than the "
                f"{_PATIENCE:.0f} s allowed."
            )
    with torch.no_grad():
        right = model(pictures.test[0]).argmax(1) == pictures.test[1]
    return float(right.float().mean())


def _clocks() -> tuple[float, float]:
    """Seconds of the wall and of the processor: a machine that is busy with other work does not
    change what is measured."""
    return time.perf_counter(), time.process_time()


class _Adam:
    """Adam, written out: the first optimizer of torch.optim loads PyTorch's compiler, which takes
    as long as this training."""

    def __init__(self) -> None:
        self.steps, self.moments = 0, dict[str, tuple[Tensor, Tensor]]()

    @torch.no_grad()
    def step(
        self, parameters: dict[str, nn.Parameter], gradients: Mapping[str, Tensor], rate: float
    ) -> None:
        """What is not sent is not trained."""
        self.steps += 1
        size, spread = 1 - _BETA_1**self.steps, math.sqrt(1 - _BETA_2**self.steps)
        for name, g in gradients.items():
            m, v = self.moments.setdefault(name, (torch.zeros_like(g), torch.zeros_like(g)))
            m.lerp_(g, 1 - _BETA_1)
            v.mul_(_BETA_2).addcmul_(g, g, value=1 - _BETA_2)
            parameters[name].addcdiv_(m, (v.sqrt() / spread).add_(_EPSILON), value=-rate / size)


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


def _weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _entry_size(update: Update) -> float:
    """Root mean square over all entries."""
    squares = math.fsum(float(g.double().square().sum()) for g in update.gradients.values())
    return math.sqrt(squares / sum(g.numel() for g in update.gradients.values()))
