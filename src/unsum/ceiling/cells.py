"""Cells of a table: numbers that are mirrored, and categories against each other one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unsum.ceiling.client import World
from unsum.ceiling.components import moved, one_entry
from unsum.ceiling.secret import TwoWorlds, View, drawn, with_row
from unsum.data.table_schema import TableSchema

WHOLE_ROW = 64  # [pairs] a row with no more pairs of a cell and an alternative is gone through


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
            stratum = drawn(mass, float(torch.rand((), generator=generator)))
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
        inputs = with_row(world.inputs, self.i, _with_part(row, cell, changed))
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
        return world._replace(inputs=with_row(world.inputs, self.i, row))

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


def _with_part(row: Tensor, part: slice, values: Tensor) -> Tensor:
    changed = row.clone()
    changed[part] = values
    return changed
