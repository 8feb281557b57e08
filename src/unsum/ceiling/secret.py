"""Secrets: what has two values, and the two worlds that differ in it.

A `Secret` is of one sample. It has strata of equal weight; `draw(stratum, generator, world)` gives
a pair of worlds, of which one is always the `world` that it was given: by default the client's own,
whose update is the same in all pairs and is played once. All else is the same in both, and granted
to the attacker. Where a secret is `exhaustive`, one draw from every stratum is all there is around
one world.

A sample has `many` such coins. `shuffled` draws the value of each of them, so that pairs can be
taken around worlds at random as well: a client may be blind to each single step from its own
samples, and still send all that they hold.

What a sample is of has a module of its own: `components` of pictures and entries of other arrays,
`cells` of tables, `tokens` of texts. Here are those of any sample: its label and its presence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from unsum.ceiling.client import World

STRATA = 4  # bands of equal weight, or quarters of a long text; a cycle of draws has one of each

View = Literal["whole", "toneless"]


class TwoWorlds(NamedTuple):
    """A world and another one; pairs of the same `name` around the same world are the same pair.

    `discrete`: the secret is right or wrong, so that what counts is how often it is named, and not
    a squared error.
    """

    one: World
    other: World
    name: tuple[int, ...] = ()
    discrete: bool = False


class Secret(Protocol):
    @property
    def strata(self) -> int: ...

    @property
    def exhaustive(self) -> bool: ...

    @property
    def amplitude(self) -> float:
        """What is in question, as a share of the entry's deviation."""
        ...

    @property
    def weights(self) -> Sequence[float] | None:
        """Of the strata, where they count differently; only of an exhaustive secret."""
        ...

    @property
    def many(self) -> bool:
        """Whether it is of many coins, whose values `shuffled` draws."""
        ...

    @property
    def views(self) -> tuple[View, ...]:
        """What is bounded of the sample: the whole, and of pictures what is left of it without
        brightness and tint."""
        ...

    def draw(
        self,
        stratum: int,
        generator: torch.Generator,
        world: World | None = None,
        view: View = "whole",
    ) -> TwoWorlds: ...

    def shuffled(self, world: World, generator: torch.Generator) -> World:
        """The world with each of this sample's coins at one of its two values."""
        ...


@dataclass(frozen=True, eq=False)
class Label:
    """The label of sample `i` against others: `alternatives`, rows of targets or classes."""

    world: World
    i: int
    alternatives: Sequence[Tensor]
    exhaustive: bool = True
    amplitude: float = 1.0
    weights: None = None
    many: bool = False
    views: tuple[View, ...] = ("whole",)

    @property
    def strata(self) -> int:
        return len(self.alternatives)

    def draw(
        self,
        stratum: int,
        generator: torch.Generator,  # noqa: ARG002 (nothing is drawn)
        world: World | None = None,
        view: View = "whole",  # noqa: ARG002 (there is one)
    ) -> TwoWorlds:
        world = world or self.world
        other = with_row(world.targets, self.i, self.alternatives[stratum].to(world.targets))
        return TwoWorlds(world, world._replace(targets=other), discrete=True)

    def shuffled(self, world: World, generator: torch.Generator) -> World:  # noqa: ARG002 (there is one coin)
        return world


@dataclass(frozen=True, eq=False)
class Presence:
    """Whether sample `i` took part: the batch with it and without it.

    A mean over the batch is one over B − 1 then. How many samples there are is not sent.
    """

    world: World
    i: int
    strata: int = 1
    exhaustive: bool = True
    amplitude: float = 1.0
    weights: None = None
    many: bool = False
    views: tuple[View, ...] = ("whole",)

    def draw(
        self,
        stratum: int,  # noqa: ARG002 (there is one pair)
        generator: torch.Generator,  # noqa: ARG002
        world: World | None = None,
        view: View = "whole",  # noqa: ARG002
    ) -> TwoWorlds:
        world = world or self.world
        kept = [j for j in range(len(world.inputs)) if j != self.i]
        rows = (None if part is None else part[kept] for part in world)
        return TwoWorlds(world, World(*rows), discrete=True)  # type: ignore[arg-type] # inputs and targets are there

    def shuffled(self, world: World, generator: torch.Generator) -> World:  # noqa: ARG002 (there is one coin)
        return world


def drawn(mass: Tensor, share: float) -> int:
    """Where the summed variances `mass` pass this share of all; never where nothing is added."""
    place = torch.searchsorted(mass, share * float(mass[-1]), right=True)
    return min(int(place), int(torch.searchsorted(mass, float(mass[-1]))))


def with_row(rows: Tensor, i: int, row: Tensor) -> Tensor:
    changed = rows.clone()
    changed[i] = row
    return changed


def stratum_of(secret: Secret, generator: torch.Generator) -> int:
    """A stratum, as often as its weight says."""
    weights = torch.tensor(secret.weights or [1.0] * secret.strata, dtype=torch.float64)
    return int(torch.multinomial(weights, 1, generator=generator))


@dataclass(frozen=True, eq=False)
class AnyOf:
    """A secret of one of several samples, all as likely: its ceiling is their mean."""

    secrets: Sequence[Secret]
    exhaustive: bool = False
    weights: None = None

    @property
    def strata(self) -> int:
        return len(self.secrets)

    @property
    def amplitude(self) -> float:
        return self.secrets[0].amplitude

    @property
    def many(self) -> bool:
        return self.secrets[0].many

    @property
    def views(self) -> tuple[View, ...]:
        return max((secret.views for secret in self.secrets), key=len)

    def draw(
        self,
        stratum: int,
        generator: torch.Generator,
        world: World | None = None,
        view: View = "whole",
    ) -> TwoWorlds:
        secret = self.secrets[stratum]
        return secret.draw(stratum_of(secret, generator), generator, world, view)

    def shuffled(self, world: World, generator: torch.Generator) -> World:
        for secret in self.secrets:
            world = secret.shuffled(world, generator)
        return world
