"""Secrets: what has two values, and the two worlds that differ in it.

A `Secret` is of one sample. It has strata of equal weight; `draw(stratum, generator, world)` gives
a pair of worlds, of which one is always the `world` that it was given: by default the client's own,
whose update is the same in all pairs and is played once. All else is the same in both, and granted
to the attacker. Where a secret is `exhaustive`, one draw from every stratum is all there is around
one world.

A sample has `many` such coins. `shuffled` draws the value of each of them, so that pairs can be
taken around worlds at random as well: a client may be blind to each single step from its own
samples, and still send all that they hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from unsum.ceiling.client import World
from unsum.data.table_schema import TableSchema
from unsum.models.language import IGNORED
from unsum.photos import coefficients, component, frequencies, pictures_of

STRATA = 4  # bands of equal weight, or quarters of a long text; a cycle of draws has one of each
WHOLE_TEXT = 32  # [tokens] a text of no more is gone through token by token
WHOLE_ROW = 64  # [pairs] a row with no more pairs of a cell and an alternative is gone through

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
class Components:
    """One component of sample `i`, as it is or mirrored: c and −c, where x = guess + Σ_k c_k e_k.

    `guess` is what an attacker answers without the update (`unsum.score.reference`). Whoever knows
    every |c_k| and all signs but one has a squared error of c_k² mmse there, so that

        1 − ‖x̂ − x‖² / ‖guess − x‖²  ≤  Σ c_k² known_k / Σ c_k²

    in the mean over both worlds: the unit is that of the leakage, sample by sample. Components are
    drawn in proportion to c_k². Of pictures they are waves times colors, low frequencies in the
    first stratum, because signs of waves are what photos leave open; of anything else entries.
    With an `amplitude` a of less than 1 the step is 2 a c_k.

    Of a picture the means of the colors, its tone, are a view of their own: `whole` draws one of
    them as often as their share of Σ c_k² says, and another component else; `toneless` draws that
    other component always. Both views of one generator agree where no tone is drawn.
    """

    world: World
    i: int
    guess: Tensor
    pictures: bool = False
    amplitude: float = 1.0
    exhaustive: bool = False
    weights: None = None
    many: bool = True

    @property
    def strata(self) -> int:
        return STRATA if self.pictures else 1

    @property
    def views(self) -> tuple[View, ...]:
        two = self.pictures and float(self._table[1][-1]) > 0
        return ("whole", "toneless") if two else ("whole",)

    def draw(
        self,
        stratum: int,
        generator: torch.Generator,
        world: World | None = None,
        view: View = "whole",
    ) -> TwoWorlds:
        world = world or self.world
        order, mass, size, tone = self._table
        still, rest = float(size[tone].square().sum()), float(mass[-1])
        if not still + rest > 0:  # the sample is what anybody guesses
            return TwoWorlds(world, world, (self.i, -1))
        first, within = torch.rand(2, generator=generator).tolist()
        if (view == "whole" and first * (still + rest) < still) or not rest > 0:
            place = int(tone[_drawn(size[tone].square().cumsum(0), first * (still + rest) / still)])
        else:
            place = int(order[_drawn(mass, (stratum + within) / self.strata)])
        shape = self.world.inputs.shape[1:]
        unit = component(shape, place) if self.pictures else one_entry(shape, place)
        now = size[place]
        if world is not self.world:
            off = world.inputs[self.i].detach().cpu().double() - self.guess.view(shape).cpu()
            now = (unit * off).sum()
        step = float(2 * (1 - self.amplitude) * size[place] - 2 * now) * unit
        return moved(world, self.i, step, place)

    def shuffled(self, world: World, generator: torch.Generator) -> World:
        size = self._table[2]
        flips = torch.randint(2, size.shape, generator=generator)
        mirrored = size * (1 - 2 * self.amplitude * flips)
        shape = world.inputs.shape[1:]
        off = pictures_of(mirrored.view(1, *shape))[0] if self.pictures else mirrored.view(shape)
        row = (self.guess.cpu().double().view(shape) + off).to(world.inputs)
        return world._replace(inputs=_with_row(world.inputs, self.i, row))

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Places in the order of frequency, their summed squares, all components, and the places of
        the tone, which are not among the first."""
        sample = self.world.inputs[self.i].detach().cpu().double()
        off = sample - self.guess.to(sample).view_as(sample)
        if not self.pictures:
            off = off.flatten()
            nowhere = torch.zeros(0, dtype=torch.long)
            return torch.arange(len(off)), off.square().cumsum(0), off, nowhere
        size = coefficients(off[None])[0].flatten()
        order = frequencies(*off.shape[1:]).expand(off.shape).flatten().argsort(stable=True)
        tone, order = order[: len(off)], order[len(off) :]  # frequency 0, of every color
        return order, size[order].square().cumsum(0), size, tone


@dataclass(frozen=True, eq=False)
class Entries:
    """One entry of sample `i`, as it is or two deviations further, up or down, drawn by variance.

    Of two values 2 a h apart, both as likely, the deviation is a h: h is the entry's `spread`,
    which the user declares, and a the `amplitude`. Which way is drawn once for each entry, so that
    one that is drawn twice is played once.
    """

    world: World
    i: int
    spread: Tensor
    amplitude: float = 1.0
    strata: int = 1
    exhaustive: bool = False
    weights: None = None
    many: bool = True
    views: tuple[View, ...] = ("whole",)

    def draw(
        self,
        stratum: int,  # noqa: ARG002 (all are one stratum)
        generator: torch.Generator,
        world: World | None = None,
        view: View = "whole",  # noqa: ARG002 (there is one)
    ) -> TwoWorlds:
        world = world or self.world
        mass = self.spread.double().flatten().cpu().square().cumsum(0)
        place = _drawn(mass, float(torch.rand((), generator=generator)))
        step = float(self._steps[place])
        own, now = (float(w.inputs[self.i].flatten()[place]) for w in (self.world, world))
        back = abs(now - own) > abs(step) / 2
        return moved(
            world, self.i, (-step if back else step) * one_entry(self.spread.shape, place), place
        )

    def shuffled(self, world: World, generator: torch.Generator) -> World:
        steps = self._steps * torch.randint(2, self._steps.shape, generator=generator)
        row = self.world.inputs[self.i]
        row = (row.double() + steps.view(row.shape).to(row.device)).to(row.dtype)
        return world._replace(inputs=_with_row(world.inputs, self.i, row))

    @cached_property
    def _steps(self) -> Tensor:
        """Of every entry, as it is drawn by a generator that is the same for all samples."""
        flat = self.spread.double().flatten().cpu()
        up = torch.randint(2, flat.shape, generator=torch.Generator().manual_seed(0))
        return (2 - 4 * up) * flat * self.amplitude


@dataclass(frozen=True, eq=False)
class Cells:
    """One cell of row `i` of a table.

    A number is as it is or mirrored at the `guess`; a category stands against each other one, in
    the mean over them, and is right or wrong. A cell counts by its share of ‖guess − x‖², as in the
    leakage. A row with more than so many pairs is drawn from.
    """

    world: World
    i: int
    schema: TableSchema
    guess: Tensor
    amplitude: float = 1.0
    many: bool = True
    views: tuple[View, ...] = ("whole",)

    @property
    def exhaustive(self) -> bool:
        return len(self.places) <= WHOLE_ROW

    @property
    def strata(self) -> int:
        return len(self.places) if self.exhaustive else 1

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """The column and how far on in its values the alternative stands, of every pair."""
        return [
            (k, further)
            for k, column in enumerate(self.schema.columns)
            for further in range(1, 2 if column.kind == "number" else max(len(column.values), 2))
        ]

    @property
    def weights(self) -> Sequence[float]:
        return self._weights

    @cached_property
    def _weights(self) -> Sequence[float]:
        off = (self.world.inputs[self.i].cpu().double() - self.guess.view(-1).cpu()).square()
        parts = off.split(self.schema.widths())
        coded = [self.schema.embedded and not column.plain for column in self.schema.columns]
        found = [
            1.0 if code else float(part.sum()) for code, part in zip(coded, parts, strict=True)
        ]
        found = found if math.fsum(found) > 0 else [1.0] * len(found)
        alternatives = [0] * len(found)
        for k, _ in self.places:
            alternatives[k] += 1
        return [found[k] / alternatives[k] for k, _ in self.places]

    def draw(
        self,
        stratum: int,
        generator: torch.Generator,
        world: World | None = None,
        view: View = "whole",  # noqa: ARG002 (there is one)
    ) -> TwoWorlds:
        world = world or self.world
        if not self.exhaustive:
            mass = torch.tensor(self._weights, dtype=torch.float64).cumsum(0)
            stratum = _drawn(mass, float(torch.rand((), generator=generator)))
        k, further = self.places[stratum]
        column, cell = self.schema.columns[k], self._cell(k)
        row, own = world.inputs[self.i], self.world.inputs[self.i]
        if column.kind == "number":
            step = 2 * (float(self.guess.view(-1)[cell.start]) - float(row[cell.start]))
            return moved(world, self.i, step * one_entry(row.shape, cell.start), stratum)
        if len(column.values) < 2:
            return TwoWorlds(world, world, (self.i, stratum), discrete=True)
        if not torch.equal(row[cell], own[cell]):  # one of the alternatives, each as often
            changed = own[cell]
        else:
            changed = self._alternative(k, further)
        inputs = _with_row(world.inputs, self.i, _with_part(row, cell, changed))
        return TwoWorlds(world, world._replace(inputs=inputs), (self.i, stratum), discrete=True)

    def shuffled(self, world: World, generator: torch.Generator) -> World:
        row = self.world.inputs[self.i].clone()
        for k, column in enumerate(self.schema.columns):
            cell = self._cell(k)
            away = bool(torch.randint(2, (), generator=generator))
            if column.kind == "number":
                mirrored = 2 * float(self.guess.view(-1)[cell.start]) - float(row[cell.start])
                row[cell.start] = mirrored if away else row[cell.start]
            elif away and len(column.values) > 1:
                further = int(torch.randint(1, len(column.values), (), generator=generator))
                row[cell] = self._alternative(k, further)
        return world._replace(inputs=_with_row(world.inputs, self.i, row))

    def _cell(self, k: int) -> slice:
        widths = self.schema.widths()
        return slice(sum(widths[:k]), sum(widths[: k + 1]))

    def _alternative(self, k: int, further: int) -> Tensor:
        """The cell with the value that stands so much further on in the column's list."""
        read, values = self.world.inputs[self.i][self._cell(k)], len(self.schema.columns[k].values)
        own = int(read.argmax()) if len(read) > 1 else round(float(read[0]))
        another = (own + further) % values
        if len(read) == 1:
            return torch.full_like(read, float(another))
        return torch.nn.functional.one_hot(torch.tensor(another), values).to(read)


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
        other = _with_row(world.targets, self.i, self.alternatives[stratum].to(world.targets))
        return TwoWorlds(world, world._replace(targets=other), discrete=True)

    def shuffled(self, world: World, generator: torch.Generator) -> World:  # noqa: ARG002 (there is one coin)
        return world


@dataclass(frozen=True, eq=False)
class Tokens:
    """One token of text `i` against the one that the model expects most there, `likeliest` (n, L).

    `places` of the text can be changed: padding cannot. The label of a place changes with its
    token, and alone where the token itself is masked.
    """

    world: World
    i: int
    likeliest: Tensor
    places: Tensor
    amplitude: float = 1.0
    weights: None = None
    many: bool = True
    views: tuple[View, ...] = ("whole",)

    @property
    def exhaustive(self) -> bool:
        return len(self.places) <= WHOLE_TEXT

    @property
    def strata(self) -> int:
        return max(len(self.places), 1) if self.exhaustive else STRATA

    def draw(
        self,
        stratum: int,
        generator: torch.Generator,
        world: World | None = None,
        view: View = "whole",  # noqa: ARG002 (there is one)
    ) -> TwoWorlds:
        world = world or self.world
        if not len(self.places):
            return TwoWorlds(world, world, discrete=True)
        share = (stratum + float(torch.rand((), generator=generator))) / self.strata
        chosen = stratum if self.exhaustive else int(share * len(self.places))
        place = int(self.places[min(chosen, len(self.places) - 1)])
        turned = torch.zeros(self.world.inputs.shape[1], dtype=torch.bool)
        turned[place] = True
        return TwoWorlds(world, self._turned(world, turned), discrete=True)

    def shuffled(self, world: World, generator: torch.Generator) -> World:
        turned = torch.zeros(self.world.inputs.shape[1], dtype=torch.bool)
        places = self.places.cpu()
        turned[places] = torch.randint(2, places.shape, generator=generator).bool()
        return self._turned(world, turned)

    def _turned(self, world: World, places: Tensor) -> World:
        """The other of both tokens in each of these `places` (L,)."""
        own, label = self.world.inputs[self.i], None
        turned, other = places.to(own.device), self.likeliest[self.i].to(own)
        if self.world.targets.shape == self.world.inputs.shape:
            label = self.world.targets[self.i]
        predicted = torch.zeros_like(turned) if label is None else label != IGNORED
        masked = torch.zeros_like(turned) if label is None else predicted & (label != own)
        inputs, targets = world.inputs.clone(), world.targets.clone()
        row = inputs[self.i]
        inputs[self.i] = torch.where(turned & ~masked, torch.where(row == own, other, own), row)
        if label is not None:
            said = targets[self.i]
            changed = torch.where(said == label, other.to(label), label)
            targets[self.i] = torch.where(turned & predicted, changed, said)
        return world._replace(inputs=inputs, targets=targets)


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


def moved(world: World, i: int, step: Tensor, place: int) -> TwoWorlds:
    """Sample `i` as it is in this world, and this step further.

    Nothing is cut off where an entry leaves its range: worlds are granted, and granting one that
    cannot be keeps the ceiling one.
    """
    sample = world.inputs[i]
    further = (sample.double() + step.to(sample.device)).to(sample.dtype)
    return TwoWorlds(world, world._replace(inputs=_with_row(world.inputs, i, further)), (i, place))


def one_entry(shape: torch.Size | tuple[int, ...], place: int) -> Tensor:
    """1 at the flat index `place`, else 0."""
    unit = torch.zeros(math.prod(shape), dtype=torch.float64)
    unit[place] = 1.0
    return unit.view(shape)


def _drawn(mass: Tensor, share: float) -> int:
    """Where the summed variances `mass` pass this share of all; never where nothing is added."""
    place = torch.searchsorted(mass, share * float(mass[-1]), right=True)
    return min(int(place), int(torch.searchsorted(mass, float(mass[-1]))))


def _with_row(rows: Tensor, i: int, row: Tensor) -> Tensor:
    changed = rows.clone()
    changed[i] = row
    return changed


def _with_part(row: Tensor, part: slice, values: Tensor) -> Tensor:
    changed = row.clone()
    changed[part] = values
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
