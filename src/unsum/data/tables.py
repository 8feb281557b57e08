"""A client's batch out of a table: every column is looked at once, and a few rows are read
again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unsum.data.batch import Batch, places_of
from unsum.data.table_file import TableFile
from unsum.data.table_schema import (
    MISSING,
    Kind,
    TableColumn,
    TableSchema,
    category_in,
    decimals_of,
    declared_kinds,
    is_missing,
    number,
)
from unsum.errors import UnsumError, check_name, shown

_MOST_VALUES = 1000  # of a category: more are names or identifiers, which nobody trains on
_LISTED = 4  # columns that a sentence names


@dataclass
class _Profile:
    """What a column holds, gathered piece by piece: its first values, and mean and squares of its
    numbers, merged as Chan et al. 1979 do."""

    numbers: int = 0
    mean: float = 0.0
    squares: float = 0.0
    missing: int = 0
    texts: int = 0
    strange: tuple[str, int] | None = None  # the first cell that is no number, and its row
    values: set[str] = field(default_factory=set)

    @property
    def crowded(self) -> bool:
        return len(self.values) > _MOST_VALUES

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / max(self.numbers, 1))

    @property
    def decimals(self) -> int:
        return max(
            (decimals_of(value) for value in self.values if number(value) is not None), default=0
        )

    def add(self, cells: Sequence[str], row: int) -> None:
        if not self.crowded:
            self.values.update(map(category_in, set(cells)))
        found = [number(cell) for cell in cells]
        self._merge(np.array([value for value in found if value is not None], dtype=np.float64))
        for place, (cell, value) in enumerate(zip(cells, found, strict=True)):
            if value is None and is_missing(cell):
                self.missing += 1
            elif value is None:
                self.strange = self.strange or (cell.strip(), row + place)
                self.texts += 1

    def _merge(self, new: NDArray[np.float64]) -> None:
        if not len(new):
            return
        total, apart = self.numbers + len(new), float(new.mean()) - self.mean
        with np.errstate(over="ignore"):  # who asks for the deviation sees that it is infinite
            own = float(((new - new.mean()) ** 2).sum())
        self.squares += own + apart * apart * self.numbers * len(new) / total
        self.mean += apart * len(new) / total
        self.numbers = total


@dataclass(frozen=True)
class ClientTable:
    """A table that was looked through: what its columns are, every row's class, and what was done
    to make it fit."""

    file: TableFile
    schema: TableSchema
    labels: torch.Tensor  # (N,) of every row; −1 where the target is missing
    notes: tuple[str, ...] = ()

    @classmethod
    def open(
        cls, path: Path, target: str | None, columns: str | Mapping[str, str] | None = None
    ) -> ClientTable:
        file = TableFile(path)
        names = file.names
        if target is None:
            raise UnsumError(
                f"Say which column of {path.name!r} the model predicts: --target, one of "
                f"{_listed(names)}."
            )
        check_name("column", target, names)
        kinds = declared_kinds(columns, names)
        profiles, answers = (
            {name: _Profile() for name in names if kinds.get(name) != "skip"},
            list[str](),
        )
        for piece in file.pieces():
            cells = dict(zip(names, zip(*piece, strict=True), strict=True))
            for name, profile in profiles.items():
                profile.add(cells[name], len(answers))
            answers += map(category_in, cells[target])
        if not answers:
            raise UnsumError(f"{path.name!r} has no rows below its first line.")
        classes = _classes(file, target, profiles.pop(target, _Profile()))
        notes: list[str] = []
        found = [
            _column(file, name, profile, kinds.get(name), notes)
            for name, profile in profiles.items()
        ]
        kept = tuple(column for column in found if column is not None)
        constant = [name for name, column in zip(profiles, found, strict=True) if column is None]
        if constant:
            notes.append(f"Left out, being the same in every row: {_listed(constant)}.")
        if not kept:
            raise UnsumError(
                f"{path.name!r} has no column beside {shown(target)} that differs between its rows."
            )
        number_of = {name: place for place, name in enumerate(classes)}
        labels = torch.tensor([number_of.get(answer, -1) for answer in answers])
        lacking = int((labels < 0).sum())
        if lacking:
            notes.append(
                f"{lacking:,} of {len(labels):,} rows have no {shown(target)} and are left out."
            )
        return cls(file, TableSchema(kept, target, classes), labels, tuple(notes))

    def with_embeddings(self) -> ClientTable:
        """The same for a network that embeds its categories."""
        return replace(self, schema=replace(self.schema, embedded=True))

    def batch(self, size: int, *, same_label: int = 0, seed: int = 0) -> Batch:
        """`size` rows, chosen by `seed` as photos are, encoded for a network."""
        usable = (self.labels >= 0).nonzero()[:, 0]
        places = [
            int(usable[i])
            for i in places_of(self.labels[usable], size, same_label, seed, what="rows")
        ]
        wanted = [self.file.names.index(column.name) for column in self.schema.columns]
        rows = [[row[i] for i in wanted] for row in self.file.rows(places)]
        titles = [self.file.line(place) for place in places]
        names, notes = list(self.schema.classes), " ".join(self.notes)
        return Batch(
            self.schema.encode(rows), self.labels[places], titles, names, notes, self.schema
        )


def _classes(file: TableFile, target: str, profile: _Profile) -> tuple[str, ...]:
    """The target's values in order, by number where they are numbers."""
    values = profile.values - {MISSING}
    name = f"The target {shown(target)} of {file.path.name!r}"
    if profile.crowded:
        raise UnsumError(
            f"{name} has more than {_MOST_VALUES:,} values; a classifier's has fewer, so bin it, "
            "or choose another."
        )
    if len(values) < 2:
        only = f"the one value {shown(next(iter(values)))}" if values else "no value"
        raise UnsumError(
            f"{name} has {only}; choose another --target, or rows of two classes or more."
        )
    return tuple(sorted(values, key=_in_order))


def _column(
    file: TableFile, name: str, seen: _Profile, said: Kind | None, notes: list[str]
) -> TableColumn | None:
    """What a column is; None where all its rows are the same. `notes` grows by what a person should
    know."""
    if len(seen.values) == 1:
        return None
    kind = said or (
        "number"
        if not seen.texts and (seen.crowded or len(seen.values - {MISSING}) > 2)
        else "category"
    )
    mixed = seen.texts and seen.numbers
    if mixed and seen.strange and said is None:
        what = (
            f"{shown(name)} holds numbers and text ({shown(seen.strange[0])} in "
            f"{file.line(seen.strange[1])})"
        )
        if seen.crowded:
            raise UnsumError(
                f"The column {what}; say --columns '{name}=number' to count text as missing, or "
                f"'{name}=skip'."
            )
        notes.append(f"{what}: it is read as categories.")
    if kind == "category":
        if seen.crowded:
            raise UnsumError(
                f"The column {shown(name)} of {file.path.name!r} has more than {_MOST_VALUES:,} "
                f"values, as names and identifiers have; leave it out with --columns '{name}=skip'."
            )
        return TableColumn(name, "category", values=tuple(sorted(seen.values, key=_in_order)))
    if seen.deviation == 0:
        return None
    if not math.isfinite(seen.deviation):
        raise UnsumError(
            f"The column {shown(name)} of {file.path.name!r} holds numbers whose squares no float "
            f"holds; leave it out with --columns '{name}=skip'."
        )
    filled = seen.missing + seen.texts
    if filled:
        notes.append(
            f"{filled:,} cells of {shown(name)} hold no number; the column's mean stands there."
        )
    return TableColumn(name, "number", seen.mean, seen.deviation, seen.decimals)


def _in_order(value: str) -> tuple[bool, float, str]:
    found = number(value)
    return found is None, found or 0.0, value


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return ", ".join(map(shown, known[:_LISTED])) + more
