"""Tables in the form that is asked for: for a terminal, Markdown, LaTeX or CSV.

A matrix is a table turned: one axis becomes columns, so that hundreds of rows fit a page.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from unsum.bench.declare import Column
from unsum.bench.table import NOT_RUN, Row, Table, axis_text

Form = Literal["markdown", "latex", "csv"]
_LEAKAGE, _LABELS = Column("leakage", "leakage"), Column("labels", "labels")
# What LaTeX reads as its own, and what its usual fonts lack. The first is two characters that are one sign.
_SYMBOLS = {
    "l̂": r"$\hat{l}$", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}",
    "‖": r"$\|$", "Ŷ": r"$\hat{Y}$", "′": "$'$", "−": "$-$", "²": r"$^2$", "∇": r"$\nabla$", "±": r"$\pm$", "–": "--",
    "×": r"$\times$", "λ": r"$\lambda$", "|": r"$|$", "<": "$<$", ">": "$>$", "σ": r"$\sigma$", "ε": r"$\varepsilon$",
}  # fmt: skip
_SYMBOL = re.compile("|".join(map(re.escape, _SYMBOLS)))


def written(table: Table, form: Form) -> str:
    """One table as text that another program takes."""
    forms: dict[Form, Callable[[Table], str]] = {"markdown": markdown, "latex": latex, "csv": as_csv}
    return forms[form](table)


def markdown(table: Table) -> str:
    return _pipes(table.headings(), map(table.cells, table.rows))


def _pipes(headings: list[str], rows: Iterable[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    cells = ([text.replace("|", "\\|").replace("\n", " ") for text in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def matrix(table: Table) -> str:
    """Markdown: a row for everything but the axis, a column for each of its values, and the refusals below."""
    axis = table.experiment.across
    own = [name for name in table.axes if name != axis]
    columns = list(dict.fromkeys(axis_text(row.cell, axis) for row in table.rows))
    rows: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in table.rows:
        names = tuple(axis_text(row.cell, name) for name in own)
        rows.setdefault(names, {})[axis_text(row.cell, axis)] = row
    lines = [[*names, *(_entry(row.get(column)) for column in columns)] for names, row in rows.items()]
    return "\n\n".join(filter(None, [_pipes([*own, *columns], lines), _refusals(table.rows)]))


def _entry(row: Row | None) -> str:
    """The leakage; labels right, of an attack on labels alone; or a word that stands for a sentence below."""
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
    return "\n".join(f"- {', '.join(f'`{n}`' for n in dict.fromkeys(names))}: {text}" for text, names in said.items())


def latex(table: Table) -> str:
    """A `tabular` with booktabs' rules."""
    columns = "l" * len(table.axes) + "r" * (len(table.headings()) - len(table.axes))
    rows = [table.headings(), *map(table.cells, table.rows)]
    signs = partial(_SYMBOL.sub, lambda found: _SYMBOLS[found[0]])
    heading, *lines = (" & ".join(map(signs, cells)) + r" \\" for cells in rows)
    top = [f"% {table.experiment.title}; size {table.size}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
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
    drawn = Drawn(title=f"{table.experiment.name}: {table.experiment.title}, size {table.size}", title_justify="left")
    for place, heading in enumerate(table.headings()):
        drawn.add_column(Text(heading), justify="left" if place < len(table.axes) else "right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(text) for text in table.cells(row)))
    console.print(drawn)
