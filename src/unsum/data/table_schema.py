"""What the columns of a table are, and how a row becomes the numbers that a network reads, and back
again.

A number is standardized; mean and deviation are remembered, so that what an attack reads is shown
in the table's own units. Of two values one is 1 and the other 0. More values are one-hot, or a code
where the network embeds them. A missing number is the column's mean, a missing category a category
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unsum.errors import UnsumError, check_name, shown
from unsum.models.table_network import RowShape

Kind = Literal["number", "category", "skip"]
KINDS: tuple[Kind, ...] = ("number", "category", "skip")
MISSING = "missing"
# as tables write it, in small letters
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", MISSING})
_DIGITS = 12  # behind the point, at most: what a double holds of numbers near 1


@dataclass(frozen=True)
class TableColumn:
    """One column that the network reads."""

    name: str
    kind: Kind
    mean: float = 0.0
    deviation: float = 1.0
    decimals: int = 0  # as many as the table writes
    values: tuple[str, ...] = ()  # of a category

    @property
    def plain(self) -> bool:
        """Whether one input carries it: a number, or one of two values."""
        return self.kind == "number" or len(self.values) == 2

    def encode(self, cells: Sequence[str], *, embedded: bool) -> Tensor:
        """(B, width) what the network reads."""
        if self.kind == "number":
            numbers = torch.tensor(
                [number_in(cell, self.mean) for cell in cells], dtype=torch.float64
            )
            return ((numbers - self.mean) / self.deviation)[:, None].float()
        codes = torch.tensor([self.values.index(category_in(cell)) for cell in cells])
        if self.plain or embedded:
            return codes[:, None].float()
        return torch.nn.functional.one_hot(codes, len(self.values)).float()

    def decode(self, read: Tensor) -> str:
        """A cell, from what the network read in its place: as the table would write it."""
        if self.kind == "number":
            return self.written(float(read[0]) * self.deviation + self.mean)
        code = int(read[0] > 0.5) if self.plain else int(read.argmax())
        return self.values[code]

    def written(self, number: float) -> str:
        """A number with as many decimals as the table has."""
        return f"{number:.{self.decimals}f}" if math.isfinite(number) else str(number)

    def same(self, found: str, true: str) -> bool:
        """Whether a cell was found: the category, or the number to the last digit that the table
        writes (or that single precision carries: a ten-thousandth of the column's deviation)."""
        if self.kind != "number":
            return found == true
        return found == true or abs(float(found) - float(true)) <= 1e-4 * self.deviation

    def shown(self, cell: str) -> str:
        """A true cell as it went into the network."""
        return (
            self.written(number_in(cell, self.mean)) if self.kind == "number" else category_in(cell)
        )


@dataclass(frozen=True)
class TableSchema:
    """The columns in their order, and the target's classes. `embedded` categories are codes for
    embedding layers."""

    columns: tuple[TableColumn, ...]
    target: str
    classes: tuple[str, ...]
    embedded: bool = False

    @property
    def shape(self) -> RowShape:
        """As networks are built for it."""
        if not self.embedded:
            return RowShape(self.width, range(self.width))
        plain = [place for place, column in enumerate(self.columns) if column.plain]
        return RowShape(
            self.width, plain, [len(column.values) for column in self.columns if not column.plain]
        )

    def widths(self) -> list[int]:
        """How many inputs each column takes."""
        return [
            1 if column.plain or self.embedded else len(column.values) for column in self.columns
        ]

    @property
    def width(self) -> int:
        return sum(self.widths())

    def encode(self, rows: Sequence[Sequence[str]]) -> Tensor:
        """(B, width) of rows that hold the cells of these columns."""
        columns = zip(self.columns, zip(*rows, strict=True), strict=True)
        return torch.cat(
            [column.encode(cells, embedded=self.embedded) for column, cells in columns], dim=1
        )

    def decode(self, inputs: Tensor) -> list[list[str]]:
        """The cells of (n, width) inputs; where categories are embedded, inputs hold their
        codes."""
        parts = inputs.double().cpu().split(self.widths(), dim=1)
        rows = []
        for place in range(len(inputs)):
            read = [part[place] for part in parts]
            rows.append(
                [self._cell(column, one) for column, one in zip(self.columns, read, strict=True)]
            )
        return rows

    def _cell(self, column: TableColumn, read: Tensor) -> str:
        if self.embedded and not column.plain:
            return column.values[min(max(round(float(read[0])), 0), len(column.values) - 1)]
        return column.decode(read)


def declared_kinds(text: str | Mapping[str, str] | None, names: Sequence[str]) -> dict[str, Kind]:
    """`age=number,city=category,id=skip`, or a mapping, checked against the table's columns."""
    if text is None:
        return {}
    if isinstance(text, str):
        pairs = [part.partition("=") for part in text.split(",")]
        text = {name.strip(): kind.strip() for name, _, kind in pairs}
    found: dict[str, Kind] = {}
    for name, said in text.items():
        check_name("column", name, names)
        kind = next((kind for kind in KINDS if kind == said), None)
        if kind is None:
            raise UnsumError(
                f"The column {shown(name)} is said to be {shown(said)}; say {', '.join(KINDS)}."
            )
        found[name] = kind
    return found


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in _MISSING


def category_in(cell: str) -> str:
    return MISSING if is_missing(cell) else cell.strip()


def number(cell: str) -> float | None:
    """The finite number that a cell holds; Python's own underscores are no digits of a table.

    >>> number(" 3.5 "), number("1_000"), number("inf"), number("abc")
    (3.5, None, None, None)
    """
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None


def number_in(cell: str, otherwise: float) -> float:
    found = number(cell)
    return otherwise if found is None else found


def decimals_of(cell: str) -> int:
    """How many digits stand behind the point.

    >>> decimals_of("17.990"), decimals_of("3"), decimals_of("1.5e-3")
    (3, 0, 4)
    """
    digits, _, power = cell.strip().lower().partition("e")
    behind = len(digits.partition(".")[2])
    return min(max(behind - int(power or 0), 0), _DIGITS)
