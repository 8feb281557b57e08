"""What an experiment is: a declaration (model × data × batch × labels × defense × attack × seeds →
columns); nothing here runs.

Cell        one thing to measure; its content decides its key, so tables that ask for the same cell
            share the result
Grid        the product of some axes: many cells
Experiment  one table (and perhaps a figure): grids for every size, columns, what was published,
where ours differs
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Size = Literal["smoke", "small", "paper"]
SIZES: tuple[Size, ...] = get_args(Size)
Family = Literal["attack", "peeler", "server", "labels", "estimate", "soft", "twins"]
Granted = Literal["nothing", "batch size", "labels"]
Labels = Literal["hard", "smooth", "mixup"]
# what --data gives, the photos of the package, or what --cifar gives
Data = Literal["photos", "embedded", "cifar"]
Value = str | int | float | bool | tuple[str, ...]
NONE = "none"  # no defense


@dataclass(frozen=True)
class Network:
    """A network of `unsum_bench.networks` with a fresh head, for photos of one side."""

    name: str
    size: int
    classes: int
    train: bool = True  # the mode in which the client trains
    epochs: int = 0  # trained on the data first

    def __str__(self) -> str:
        return f"{self.name}{', trained' if self.epochs else ''}, {self.size}², C = {self.classes}"


@dataclass(frozen=True)
class Attack:
    """A method of a registry, its options, what it is granted, and the name that tables give it."""

    name: str
    options: tuple[tuple[str, Value], ...] = ()
    granted: Granted = "nothing"
    rule: str = ""  # the label rule that goes first
    family: Family = "attack"
    title: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.title or (
            self.name if self.family == "attack" else f"{self.family} {self.name}"
        )


@dataclass(frozen=True)
class Cell:
    """One measurement. Everything here decides its result, and therefore its key."""

    network: Network
    attack: Attack
    batch: int
    same: int = 0  # how many labels of the batch are alike
    labels: Labels = "hard"
    defense: str = NONE
    data: Data = "photos"
    draws: int = 1  # rounds that the cell is the mean of, where one says little
    pictures: bool = False  # keep a strip of what was recovered
    seed: int = 0
    # drawn with repetition, as RGLA's tables have it by default, instead of distinct
    random_labels: bool = False

    def content(self) -> dict[str, Any]:
        """What the key is made of: everything but titles. Cells of distinct labels keep the keys
        that they had before."""
        found = asdict(self)
        del found["attack"]["title"]
        if not self.random_labels:
            del found["random_labels"]
        return found

    def __str__(self) -> str:
        parts = [str(self.attack), str(self.network.name), f"B = {self.batch}"]
        parts += [f"{self.draws} batches"] * (self.draws > 1)
        parts += [f"{self.same} alike"] * bool(self.same) + [self.labels] * (self.labels != "hard")
        return ", ".join([*parts, *[self.defense] * (self.defense != NONE), f"seed {self.seed}"])


@dataclass(frozen=True)
class Grid:
    """The product of the axes, as cells; `seeds` batches of each."""

    networks: tuple[Network, ...]
    attacks: tuple[Attack, ...]
    batches: tuple[int, ...] = (8,)
    same: tuple[int, ...] = (0,)
    labels: tuple[Labels, ...] = ("hard",)
    defenses: tuple[str, ...] = (NONE,)
    data: Data = "photos"
    seeds: int = 1
    draws: int = 1
    pictures: bool = False
    random_labels: bool = False

    def cells(self) -> Iterator[Cell]:
        axes = (
            self.networks,
            self.labels,
            self.batches,
            self.same,
            self.defenses,
            self.attacks,
            range(self.seeds),
        )
        for network, labels, batch, same, defense, attack, seed in itertools.product(*axes):
            own = (self.data, self.draws, self.pictures)
            yield Cell(
                network, attack, batch, same, labels, defense, *own, seed, self.random_labels
            )


@dataclass(frozen=True)
class Column:
    """One measured value: its title, how it is written, and how batches are summed up."""

    value: str
    title: str
    form: str = ".2f"
    over: Literal["mean", "median", "max"] = "mean"
    spread: bool = False  # with its standard error over the batches


@dataclass(frozen=True)
class Published:
    """What the paper has for the rows where all of `where` holds (axis → value; an attack by its
    title)."""

    text: str
    where: Mapping[str, object]


@dataclass(frozen=True)
class Figure:
    """A drawing of an experiment: a curve of `y` over `x` or of losses over steps for every attack,
    points, or pictures."""

    kind: Literal["curve", "history", "scatter", "pictures"]
    x: str = ""
    y: str = ""
    x_title: str = ""
    y_title: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Experiment:
    """One table of a paper, or of our own."""

    name: str
    title: str
    paper: str  # the page that it stands on: rgla, soft-labels, field
    grids: Callable[[Size], tuple[Grid, ...]]
    columns: tuple[Column, ...]
    published: tuple[Published, ...] = ()
    published_title: str = "published"
    deviations: Mapping[Size, tuple[str, ...]] = field(default_factory=dict)
    see: tuple[str, ...] = ()  # pages on the same question, as seen from docs/results/tables
    figure: Figure | None = None
    across: str = ""  # the axis whose values become columns on pages, where rows would be too many
