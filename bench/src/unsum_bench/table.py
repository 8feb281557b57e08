"""A table of results out of a store: a row for every declared configuration, with the published
figure beside.

Tables in the form that is asked for: for a terminal, Markdown, LaTeX or CSV.

A matrix is a table turned: one axis becomes columns, so that hundreds of rows fit a page.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from unsum_bench.declare import Cell, Column, Experiment, Published, Size
from unsum_bench.material import declaration_of
from unsum_bench.plan import cells_of
from unsum_bench.store import Result, Store

NOT_RUN = "not run"
_SUMMED: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "max": max,
}
# Axes of a row, with their titles; one that never varies in a table is left out of it.
_AXES = {
    "network": "network",
    "labels": "labels are",
    "batch": "B",
    "same": "alike",
    "defense": "defense",
    "attack": "attack",
}


@dataclass(frozen=True)
class Row:
    """One configuration: its cell (of the first seed), and what the store has for each seed."""

    cell: Cell
    results: tuple[Result, ...]
    asked: int  # batches declared

    @property
    def measured(self) -> list[Result]:
        return [result for result in self.results if result.outcome.status == "measured"]

    def value(self, column: Column) -> float | None:
        """The column's figure over the batches that have it."""
        found = [
            r.outcome.values[column.value]
            for r in self.measured
            if column.value in r.outcome.values
        ]
        return _SUMMED[column.over](found) if found else None

    def error(self, column: Column) -> float | None:
        """The standard error of that figure: of a cell of many batches its own, else over the
        batches' cells."""
        own = [r.outcome.values.get(f"{column.value}_se") for r in self.measured]
        if len(own) == 1:
            return own[0]
        found = [
            r.outcome.values[column.value]
            for r in self.measured
            if column.value in r.outcome.values
        ]
        return statistics.stdev(found) / len(found) ** 0.5 if len(found) > 2 else None

    @property
    def batches(self) -> int:
        """How many were measured."""
        return sum(int(result.outcome.values.get("batches", 1)) for result in self.measured)

    @property
    def remark(self) -> str:
        """What a row without figures says: what it needs, how it failed, or that it was not run."""
        if self.measured:
            return ""
        if not self.results:
            return NOT_RUN
        last = self.results[-1].outcome
        return f"needs: {last.sentence}" if last.status == "needs" else f"failed: {last.sentence}"


@dataclass(frozen=True)
class Table:
    """An experiment's rows at one size, with the headings that vary."""

    experiment: Experiment
    size: Size
    rows: tuple[Row, ...]

    @property
    def axes(self) -> list[str]:
        varying = [
            name for name in _AXES if len({getattr(row.cell, name) for row in self.rows}) > 1
        ]
        return varying or ["attack"]

    @property
    def columns(self) -> list[Column]:
        """Those that any row has a figure for; all of them where nothing was run."""
        present = [
            c for c in self.experiment.columns if any(row.value(c) is not None for row in self.rows)
        ]
        return present or list(self.experiment.columns)

    def headings(self) -> list[str]:
        titles = [_AXES[axis] for axis in self.axes]
        published = [self.experiment.published_title] if self.experiment.published else []
        return [
            *titles,
            *published,
            *(column.title for column in self.columns),
            "batches",
            *self._remark_title,
        ]

    @property
    def _remark_title(self) -> list[str]:
        return [] if all(row.measured for row in self.rows) else ["remark"]

    def cells(self, row: Row) -> list[str]:
        """The row as text; a row without figures has a remark in their place."""
        axes = [axis_text(row.cell, axis) for axis in self.axes]
        known = [entry.text for entry in self.experiment.published if _belongs(entry, row.cell)]
        published = [*known, ""][:1] if self.experiment.published else []
        figures = [_figure(row, column) for column in self.columns]
        count = f"{row.batches}" if row.batches == row.asked else f"{row.batches} of {row.asked}"
        remark = [row.remark] if self._remark_title else []
        return [*axes, *published, *figures, count, *remark]

    @property
    def results(self) -> list[Result]:
        return [result for row in self.rows for result in row.results]

    @property
    def begun(self) -> bool:
        return bool(self.results)

    def of_attacks(self, names: Collection[str]) -> Table:
        """The rows of these attacks alone."""
        return replace(self, rows=tuple(row for row in self.rows if row.cell.attack.name in names))


def _figure(row: Row, column: Column) -> str:
    value = row.value(column)
    if value is None:
        return "–"
    error = row.error(column) if column.spread else None
    return format(value, column.form) + ("" if error is None else f" ± {error:{column.form}}")


def axis_text(cell: Cell, axis: str) -> str:
    return f"{cell.same}/{cell.batch}" if axis == "same" else str(getattr(cell, axis))


def read_table(experiment: Experiment, size: Size, store: Store) -> Table:
    """Every declared row, whether anything was measured for it or not."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells_of(experiment, size):
        groups.setdefault(replace(cell, seed=0), []).append(cell)
    rows, known = [], store.declarations()
    for first, cells in groups.items():
        present = [name for name in map(declaration_of, cells) if name in known]
        found = [result for name in present if (result := store.newest(name)) is not None]
        # Soft labels' draws are tries of one row, not batches of their own.
        draws = first.draws if first.attack.family in ("attack", "twins") else 1
        rows.append(Row(first, tuple(found), len(cells) * draws))
    return Table(experiment, size, tuple(rows))


def _belongs(entry: Published, cell: Cell) -> bool:
    """Published figures are for named attacks without a defense, unless they name one."""
    own = {
        "attack": str(cell.attack),
        "network": cell.network.name,
        "size": cell.network.size,
        "classes": cell.network.classes,
        **{name: getattr(cell, name) for name in ("batch", "same", "labels", "defense")},
    }
    return all(own[axis] == value for axis, value in {"defense": "none", **entry.where}.items())


Form = Literal["markdown", "latex", "csv"]
_LEAKAGE, _LABELS = Column("leakage", "leakage"), Column("labels", "labels")
# What LaTeX reads as its own, and what its usual fonts lack. The first is two characters that are
# one sign.
_SYMBOLS = {
    "l̂": r"$\hat{l}$", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}",
    "‖": r"$\|$", "Ŷ": r"$\hat{Y}$", "′": "$'$", "−": "$-$", "²": r"$^2$", "∇": r"$\nabla$",
    "±": r"$\pm$", "–": "--", "×": r"$\times$", "λ": r"$\lambda$", "|": r"$|$", "<": "$<$",
    ">": "$>$", "σ": r"$\sigma$", "ε": r"$\varepsilon$",
}  # fmt: skip
_SYMBOL = re.compile("|".join(map(re.escape, _SYMBOLS)))


def written(table: Table, form: Form) -> str:
    """One table as text that another program takes."""
    forms: dict[Form, Callable[[Table], str]] = {
        "markdown": markdown,
        "latex": latex,
        "csv": as_csv,
    }
    return forms[form](table)


def markdown(table: Table) -> str:
    return _pipes(table.headings(), map(table.cells, table.rows))


def _pipes(headings: list[str], rows: Iterable[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    cells = ([text.replace("|", "\\|").replace("\n", " ") for text in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def matrix(table: Table) -> str:
    """Markdown: a row for everything but the axis, a column for each of its values, and the
    refusals below."""
    axis = table.experiment.across
    own = [name for name in table.axes if name != axis]
    columns = list(dict.fromkeys(axis_text(row.cell, axis) for row in table.rows))
    rows: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in table.rows:
        names = tuple(axis_text(row.cell, name) for name in own)
        rows.setdefault(names, {})[axis_text(row.cell, axis)] = row
    lines = [
        [*names, *(_entry(row.get(column)) for column in columns)] for names, row in rows.items()
    ]
    return "\n\n".join(filter(None, [_pipes([*own, *columns], lines), _refusals(table.rows)]))


def _entry(row: Row | None) -> str:
    """The leakage; labels right, of an attack on labels alone; or a word that stands for a sentence
    below."""
    if row is None or not row.results:
        return NOT_RUN
    if not row.measured:
        return row.results[-1].outcome.status
    leakage, labels = row.value(_LEAKAGE), row.value(_LABELS)
    if leakage is not None:
        return f"{leakage:.2f}"
    return "–" if labels is None else f"{labels:.0%}"


def _refusals(rows: Iterable[Row]) -> str:
    """Every sentence once, with the attacks that say it."""
    said: dict[str, list[str]] = {}
    for row in rows:
        if row.results and not row.measured:
            said.setdefault(row.remark, []).append(str(row.cell.attack))
    return "\n".join(
        f"- {', '.join(f'`{n}`' for n in dict.fromkeys(names))}: {text}"
        for text, names in said.items()
    )


def latex(table: Table) -> str:
    """A `tabular` with booktabs' rules."""
    columns = "l" * len(table.axes) + "r" * (len(table.headings()) - len(table.axes))
    rows = [table.headings(), *map(table.cells, table.rows)]
    signs = partial(_SYMBOL.sub, lambda found: _SYMBOLS[found[0]])
    heading, *lines = (" & ".join(map(signs, cells)) + r" \\" for cells in rows)
    top = [
        f"% {table.experiment.title}; size {table.size}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
    ]
    return "\n".join([*top, heading, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"])


def as_csv(table: Table) -> str:
    """With the table's name and size in every line, so that tables can follow each other."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["table", "size", *table.headings()])
    for row in table.rows:
        writer.writerow([table.experiment.name, table.size, *table.cells(row)])
    return buffer.getvalue().rstrip("\n")


def show(table: Table, console: Console) -> None:
    drawn = Drawn(
        title=f"{table.experiment.name}: {table.experiment.title}, size {table.size}",
        title_justify="left",
    )
    for place, heading in enumerate(table.headings()):
        drawn.add_column(
            Text(heading), justify="left" if place < len(table.axes) else "right", overflow="fold"
        )
    for row in table.rows:
        drawn.add_row(*(Text(text) for text in table.cells(row)))
    console.print(drawn)
