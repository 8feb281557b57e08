"""Secrets: what has two values, and the two worlds that differ in it.

A `Secret` is of one sample. It has strata of equal weight; `draw(stratum)` gives a pair of worlds,
of which one is always the client's own: its update is the same in all pairs and is played once.
All else that the client has is the same in both, and granted to the attacker. Where a secret is
`exhaustive`, one draw from every stratum is all there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from unsum.ceiling.client import World
from unsum.ceiling.photos import component, frequencies, photo_spread
from unsum.data.table_schema import TableSchema
from unsum.models.language import IGNORED

STRATA = 4  # bands of equal variance, or quarters of a long text; a cycle of draws has one of each
WHOLE_TEXT = 32  # [tokens] a text of no more is gone through token by token


class TwoWorlds(NamedTuple):
    """The client's own world and another one; pairs of the same `name` are the same pair."""

    one: World
    other: World
    name: tuple[int, ...] = ()


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
    def discrete(self) -> bool:
        """Whether it is right or wrong: what counts is how often, and not a squared error."""
        ...

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds: ...


@dataclass(frozen=True, eq=False)
class PhotoComponents:
    """One component of sample `i`, as it is or two deviations further: x and x ± 2 a h_k e_k.

    Of two values 2 a h_k apart, both as likely, the deviation is a h_k. Components are drawn in
    proportion to their variance h_k², low frequencies in the first stratum. `amplitude` is a;
    `scale` turns pixels from 0 to 1 into the client's own unit.
    """

    world: World
    i: int
    amplitude: float = 1.0
    scale: float = 1.0
    strata: int = STRATA
    exhaustive: bool = False
    discrete: bool = False

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:
        order, mass, spread = self._table
        share = (stratum + float(torch.rand((), generator=generator))) / self.strata
        place = int(order[_drawn(mass, share)])
        picture = self.world.inputs[self.i]
        step = (
            component(picture.shape, place)
            * float(spread.flatten()[place])
            * self.amplitude
            * self.scale
        )
        return moved(self.world, self.i, step, place)

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor, Tensor]:
        """Places in the order of frequency, their summed variances, and all deviations."""
        shape = self.world.inputs.shape[1:]
        spread = photo_spread(shape)
        order = frequencies(*shape[1:]).expand(shape).flatten().argsort(stable=True)
        return order, spread.flatten()[order].square().cumsum(0), spread


@dataclass(frozen=True, eq=False)
class Entries:
    """One entry of sample `i`, as it is or two of its deviations further, drawn by its variance."""

    world: World
    i: int
    spread: Tensor
    amplitude: float = 1.0
    strata: int = 1
    exhaustive: bool = False
    discrete: bool = False

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:  # noqa: ARG002 (all are one stratum)
        flat = self.spread.double().flatten().cpu()
        mass = flat.square().cumsum(0)
        place = _drawn(mass, float(torch.rand((), generator=generator)))
        step = torch.zeros_like(flat)
        step[place] = flat[place] * self.amplitude
        return moved(self.world, self.i, step.view(self.spread.shape), place)


@dataclass(frozen=True, eq=False)
class Cells:
    """One cell of row `i` of a table.

    A number is as it is or two of its column's deviations further, a category stands against
    another one, which is drawn. Every column is as likely, so that the figure is of a cell and not
    of an input of the network.
    """

    world: World
    i: int
    schema: TableSchema
    amplitude: float = 1.0
    exhaustive: bool = True
    discrete: bool = False

    @property
    def strata(self) -> int:
        return len(self.schema.columns)

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:
        column, widths = self.schema.columns[stratum], self.schema.widths()
        start, place = sum(widths[:stratum]), stratum
        if column.kind == "number":
            step = torch.zeros(self.world.inputs.shape[1], dtype=torch.float64)
            step[start] = 1.0  # numbers are standardized
            return moved(self.world, self.i, step, stratum)
        row = self.world.inputs[self.i]
        read, values = row[start : start + widths[place]], len(column.values)
        own = int(read.argmax()) if widths[place] > 1 else round(float(read[0]))
        another = (own + 1 + int(torch.randint(values - 1, (), generator=generator))) % values
        changed = row.clone()
        one_hot = torch.nn.functional.one_hot(torch.tensor(another), values)
        changed[start : start + widths[place]] = (
            one_hot.to(row) if widths[place] > 1 else float(another)
        )
        return TwoWorlds(
            self.world, self.world._replace(inputs=_with_row(self.world.inputs, self.i, changed))
        )


@dataclass(frozen=True, eq=False)
class Label:
    """The label of sample `i` against one other: `alternative`, a row of targets or a class."""

    world: World
    i: int
    alternative: Tensor
    strata: int = 1
    exhaustive: bool = True
    amplitude: float = 1.0
    discrete: bool = True

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:  # noqa: ARG002 (there is one pair)
        other = _with_row(self.world.targets, self.i, self.alternative.to(self.world.targets))
        return TwoWorlds(self.world, self.world._replace(targets=other))


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
    discrete: bool = True

    @property
    def exhaustive(self) -> bool:
        return len(self.places) <= WHOLE_TEXT

    @property
    def strata(self) -> int:
        return max(len(self.places), 1) if self.exhaustive else STRATA

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:
        if not len(self.places):
            return TwoWorlds(self.world, self.world)
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
        return TwoWorlds(self.world, self.world._replace(inputs=inputs, targets=targets))


@dataclass(frozen=True, eq=False)
class Presence:
    """Whether sample `i` took part: the batch with it and without it."""

    world: World
    i: int
    strata: int = 1
    exhaustive: bool = True
    amplitude: float = 1.0
    discrete: bool = True

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:  # noqa: ARG002 (there is one pair)
        kept = [j for j in range(len(self.world.inputs)) if j != self.i]
        rows = (None if part is None else part[kept] for part in self.world)
        return TwoWorlds(self.world, World(*rows))  # type: ignore[arg-type] # inputs and targets are there


def moved(world: World, i: int, step: Tensor, place: int) -> TwoWorlds:
    """Sample `i` as it is, and two steps further, up or down: values of deviation `step`.

    Which way is drawn once for each `place`, so that a place that is drawn twice is played once.
    Nothing is cut off where an entry leaves its range: worlds are granted, and granting one that
    cannot be keeps the ceiling one.
    """
    sign = 1 - 2 * int(torch.randint(2, (), generator=torch.Generator().manual_seed(place)))
    sample = world.inputs[i]
    further = (sample.double() + 2 * sign * step.to(sample.device)).to(sample.dtype)
    return TwoWorlds(world, world._replace(inputs=_with_row(world.inputs, i, further)), (i, place))


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

    @property
    def strata(self) -> int:
        return len(self.secrets)

    @property
    def discrete(self) -> bool:
        return self.secrets[0].discrete

    @property
    def amplitude(self) -> float:
        return self.secrets[0].amplitude

    def draw(self, stratum: int, generator: torch.Generator) -> TwoWorlds:
        secret = self.secrets[stratum]
        return secret.draw(int(torch.randint(secret.strata, (), generator=generator)), generator)
