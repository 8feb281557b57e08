"""A table turned: one axis becomes columns, so that hundreds of rows fit a page. Its entries are leakages, or what there is."""

from __future__ import annotations

from collections.abc import Iterable

from unsum.bench.declare import Column
from unsum.bench.table import NOT_RUN, Row, Table, axis_text

_LEAKAGE, _LABELS = Column("leakage", "leakage"), Column("labels", "labels")


def matrix(table: Table) -> str:
    """Markdown: a row for everything but the axis, a column for each of its values, and the refusals below."""
    axis = table.experiment.across
    own = [name for name in table.axes if name != axis]
    columns = list(dict.fromkeys(axis_text(row.cell, axis) for row in table.rows))
    rows: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in table.rows:
        names = tuple(axis_text(row.cell, name) for name in own)
        rows.setdefault(names, {})[axis_text(row.cell, axis)] = row
    lines = [[*own, *columns], ["---"] * (len(own) + len(columns))]
    lines += [[*names, *(entry(row.get(column)) for column in columns)] for names, row in rows.items()]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return "\n\n".join(filter(None, [text, _refusals(table.rows)]))


def entry(row: Row | None) -> str:
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
