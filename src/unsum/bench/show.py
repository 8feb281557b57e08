"""Tables in the form that is asked for: for a terminal, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Literal

from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from unsum.bench.table import Table

Form = Literal["markdown", "latex", "csv"]
_SPECIAL = {
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
}
# What LaTeX's usual fonts lack.
_SYMBOLS = {
    "‖": r"$\|$", "Ŷ": r"$\hat{Y}$", "′": "$'$", "−": "$-$", "²": r"$^2$", "∇": r"$\nabla$", "±": r"$\pm$", "l̂": r"$\hat{l}$",
    "–": "--", "×": r"$\times$", "λ": r"$\lambda$", "|": r"$|$", "<": "$<$", ">": "$>$", "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}", "σ": r"$\sigma$", "ε": r"$\varepsilon$",
}  # fmt: skip


def written(table: Table, form: Form) -> str:
    """One table as text that another program takes."""
    forms: dict[Form, Callable[[Table], str]] = {"markdown": markdown, "latex": latex, "csv": as_csv}
    return forms[form](table)


def markdown(table: Table) -> str:
    lines = [table.headings(), ["---"] * len(table.headings()), *(table.cells(row) for row in table.rows)]
    return "\n".join("| " + " | ".join(_markdown_cell(text) for text in line) + " |" for line in lines)


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def latex(table: Table) -> str:
    """A `tabular` with booktabs' rules."""
    columns = "l" * len(table.axes) + "r" * (len(table.headings()) - len(table.axes))
    lines = [" & ".join(_latex_cell(text) for text in cells) + r" \\" for cells in map(table.cells, table.rows)]
    heading = " & ".join(_latex_cell(text) for text in table.headings()) + r" \\"
    top = [f"% {table.experiment.title}; size {table.size}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    return "\n".join([*top, heading, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"])


def _latex_cell(text: str) -> str:
    text = text.replace("l̂", "\0")  # two characters that are one sign
    found = "".join(_SPECIAL.get(sign) or _SYMBOLS.get(sign) or sign for sign in text)
    return found.replace("\0", _SYMBOLS["l̂"])


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
