"""Secrets: what has two values, and the two worlds that differ in it.

A `Secret` is of one sample. It has strata of equal weight; `draw(stratum)` gives a pair of worlds,
of which one is always the client's own: its update is the same in all pairs and is played once.
All else that the client has is the same in both, and granted to the attacker. Where a secret is
`exhaustive`, one draw from every stratum is all there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from unsum.ceiling.client import World
from unsum.ceiling.photos import coefficients, component, frequencies
from unsum.data.table_schema import TableSchema
from unsum.models.language import IGNORED

STRATA = 4  # bands of equal weight, or quarters of a long text; a cycle of draws has one of each
WHOLE_TEXT = 32  # [tokens] a text of no more is gone through token by token


class TwoWorlds(NamedTuple):
    """The client's own world and another one; pairs of the same `name` are the same pair.

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

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds: ...


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
    """

    world: World
    i: int
    guess: Tensor
    pictures: bool = False
    amplitude: float = 1.0
    exhaustive: bool = False
    weights: None = None

    @property
    def strata(self) -> int:
        return STRATA if self.pictures else 1

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:
        order, mass, size = self._table
        if not float(mass[-1]) > 0:  # the sample is what anybody guesses
            return TwoWorlds(self.world, self.world, (self.i, -1))
        share = (stratum + float(torch.rand((), generator=generator))) / self.strata
        place = int(order[_drawn(mass, share)])
        shape = self.world.inputs.shape[1:]
        unit = component(shape, place) if self.pictures else one_entry(shape, place)
        step = -2 * self.amplitude * float(size[place]) * unit
        return moved(self.world, self.i, step, place)

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor, Tensor]:
        """Places in the order of frequency, their summed squares, and all components."""
        sample = self.world.inputs[self.i].detach().cpu().double()
        off = sample - self.guess.to(sample).view_as(sample)
        if not self.pictures:
            off = off.flatten()
            return torch.arange(len(off)), off.square().cumsum(0), off
        size = coefficients(off[None])[0].flatten()
        order = frequencies(*off.shape[1:]).expand(off.shape).flatten().argsort(stable=True)
        return order, size[order].square().cumsum(0), size


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

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:  # noqa: ARG002 (all are one stratum)
        flat = self.spread.double().flatten().cpu()
        mass = flat.square().cumsum(0)
        place = _drawn(mass, float(torch.rand((), generator=generator)))
        up = int(torch.randint(2, (), generator=torch.Generator().manual_seed(place)))
        step = (2 - 4 * up) * float(flat[place]) * self.amplitude
        return moved(self.world, self.i, step * one_entry(self.spread.shape, place), place)


@dataclass(frozen=True, eq=False)
class Cells:
    """One cell of row `i` of a table.

    A number is as it is or mirrored at the `guess`, a category stands against another one, which is
    drawn, and is right or wrong. A cell counts by its share of ‖guess − x‖², as in the leakage.
    """

    world: World
    i: int
    schema: TableSchema
    guess: Tensor
    amplitude: float = 1.0
    exhaustive: bool = True

    @property
    def strata(self) -> int:
        return len(self.schema.columns)

    @cached_property
    def weights(self) -> Sequence[float]:
        off = (self.world.inputs[self.i].cpu().double() - self.guess.view(-1).cpu()).square()
        parts = off.split(self.schema.widths())
        coded = [self.schema.embedded and not column.plain for column in self.schema.columns]
        found = [
            1.0 if code else float(part.sum()) for code, part in zip(coded, parts, strict=True)
        ]
        return found if math.fsum(found) > 0 else [1.0] * len(found)

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:
        column, widths = self.schema.columns[stratum], self.schema.widths()
        start = sum(widths[:stratum])
        row = self.world.inputs[self.i]
        if column.kind == "number":
            step = 2 * (float(self.guess.view(-1)[start]) - float(row[start]))
            return moved(self.world, self.i, step * one_entry(row.shape, start), stratum)
        read, values = row[start : start + widths[stratum]], len(column.values)
        if values < 2:
            return TwoWorlds(self.world, self.world, discrete=True)
        own = int(read.argmax()) if widths[stratum] > 1 else round(float(read[0]))
        another = (own + 1 + int(torch.randint(values - 1, (), generator=generator))) % values
        changed = row.clone()
        one_hot = torch.nn.functional.one_hot(torch.tensor(another), values)
        changed[start : start + widths[stratum]] = (
            one_hot.to(row) if widths[stratum] > 1 else float(another)
        )
        inputs = _with_row(self.world.inputs, self.i, changed)
        return TwoWorlds(self.world, self.world._replace(inputs=inputs), discrete=True)


@dataclass(frozen=True, eq=False)
class Label:
    """The label of sample `i` against one other: `alternative`, a row of targets or a class."""

    world: World
    i: int
    alternative: Tensor
    strata: int = 1
    exhaustive: bool = True
    amplitude: float = 1.0
    weights: None = None

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:  # noqa: ARG002 (there is one pair)
        other = _with_row(self.world.targets, self.i, self.alternative.to(self.world.targets))
        return TwoWorlds(self.world, self.world._replace(targets=other), discrete=True)


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

    @property
    def exhaustive(self) -> bool:
        return len(self.places) <= WHOLE_TEXT

    @property
    def strata(self) -> int:
        return max(len(self.places), 1) if self.exhaustive else STRATA

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:
        if not len(self.places):
            return TwoWorlds(self.world, self.world, discrete=True)
        share = (stratum + float(torch.rand((), generator=generator))) / self.strata
        chosen = stratum if self.exhaustive else int(share * len(self.places))
        place = int(self.places[min(chosen, len(self.places) - 1)])
        token = self.likeliest[self.i, place]
        inputs, targets = self.world.inputs.clone(), self.world.targets.clone()
        predicted = targets.shape == inputs.shape and int(targets[self.i, place]) != IGNORED
        masked = predicted and int(targets[self.i, place]) != int(inputs[self.i, place])
        if predicted:
            targets[self.i, place] = token
        if not masked:
            inputs[self.i, place] = token
        other = self.world._replace(inputs=inputs, targets=targets)
        return TwoWorlds(self.world, other, discrete=True)


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

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:  # noqa: ARG002 (there is one pair)
        kept = [j for j in range(len(self.world.inputs)) if j != self.i]
        rows = (None if part is None else part[kept] for part in self.world)
        return TwoWorlds(self.world, World(*rows), discrete=True)  # type: ignore[arg-type] # inputs and targets are there


def moved(world: World, i: int, step: Tensor, place: int) -> TwoWorlds:
    """Sample `i` as it is, and this step further.

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

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:
        secret = self.secrets[stratum]
        weights = torch.tensor(secret.weights or [1.0] * secret.strata, dtype=torch.float64)
        return secret.draw(int(torch.multinomial(weights, 1, generator=generator)), generator)
