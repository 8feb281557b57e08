"""Drawings of results, in one style that can be read in grayscale: lines differ by mark and dash,
not by color alone."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from PIL import Image

from unsum.errors import UnsumError
from unsum_bench.declare import NONE, Cell, Column, Figure
from unsum_bench.table import Row, Table

# Luminances of these differ by themselves; the marks and dashes say the same once more.
_LINES = (
    ("#000000", "o", "-"),
    ("#0072b2", "s", "--"),
    ("#d55e00", "^", "-."),
    ("#56b4e9", "D", ":"),
    ("#e69f00", "v", (0, (5, 1))),
    ("#009e73", "P", (0, (3, 1, 1, 1))),
    ("#999999", "X", (0, (1, 1))),
    ("#cc79a7", "*", (0, (6, 2, 1, 2, 1, 2))),
)
_SIZE = (6.4, 3.8)  # inches
_STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "font.size": 10,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.hashsalt": "unsum",
}


def draw(table: Table, path: Path) -> bool:
    """The table's figure as a file; False where nothing was measured for it."""
    figure = table.experiment.figure
    if figure is None:
        raise UnsumError(
            f"The table {table.experiment.name!r} has no figure; `unsum bench list` shows which "
            "have one."
        )
    make = {"pictures": lambda: _pictures(table), "scatter": lambda: _scatter(table)}
    drawn = make.get(figure.kind, lambda: _curves(table, figure))()
    if drawn is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(
        path, bbox_inches="tight", metadata=None if path.suffix != ".png" else {"Software": None}
    )
    return True


def _curves(table: Table, figure: Figure) -> Any | None:
    lines = histories(table) if figure.kind == "history" else curves(table, figure)
    if not lines:
        return None
    with _plot() as (drawn, axes):
        for (name, points), (color, mark, dash) in zip(lines.items(), cycle(_LINES), strict=False):
            axes.plot(
                *zip(*points, strict=True), color=color, marker=mark, linestyle=dash, label=name
            )
        if figure.log_x:
            # With ticks at the values that were measured, instead of at powers of ten alone.
            places = sorted({x for points in lines.values() for x, _ in points})
            if places[0] == 0:
                axes.set_xscale("symlog", linthresh=min((x for x in places if x > 0), default=1.0))
            else:
                axes.set_xscale("log")
            axes.set_xticks(places, [f"{x:g}" for x in places])
            axes.minorticks_off()
        if figure.log_y:
            axes.set_yscale("log")
        elif figure.y == "leakage":
            axes.set_ylim(-0.03, 1.05)
        axes.set(xlabel=figure.x_title, ylabel=figure.y_title)
        axes.set_title(table.experiment.title, fontsize=10, loc="left")
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


def curves(table: Table, figure: Figure) -> dict[str, list[tuple[float, float]]]:
    """The points of every attack that has at least two, in the order of x."""
    column = next(
        (c for c in table.experiment.columns if c.value == figure.y), Column(figure.y, figure.y)
    )
    found: dict[str, list[tuple[float, float]]] = {}
    for row in table.rows:
        value = row.value(column)
        if value is not None:
            found.setdefault(str(row.cell.attack), []).append(
                (coordinate(row.cell, figure.x), value)
            )
    return {name: sorted(points) for name, points in found.items() if len(points) > 1}


def _scatter(table: Table) -> Any | None:
    """Right solutions and twins: their pictures against L_w and against the cross-entropy, one mark
    for each row."""
    points = [(str(row.cell.attack), _points(row)) for row in table.rows]
    known = [(name, found) for name, found in points if found]
    if not known:
        return None
    with _plot((9.0, 6.4), 2) as (drawn, axes):
        for axis, place, title in zip(
            axes, (0, 1), ("L_w at the end", "cross-entropy at the end"), strict=True
        ):
            for (name, found), (color, mark, _) in zip(known, cycle(_LINES), strict=False):
                axis.scatter(
                    [one[place] for one in found],
                    [one[2] for one in found],
                    s=12,
                    color=color,
                    marker=mark,
                    label=name,
                )
            axis.set(xlabel=title, ylabel="PSNR, dB", xscale="log" if place == 0 else "linear")
        axes[0].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.0))
        drawn.subplots_adjust(hspace=0.35)
    return drawn


def _points(row: Row) -> list[tuple[float, float, float]]:
    """(L_w, cross-entropy, PSNR) of every solution that the row's cell noted."""
    values = row.measured[0].outcome.values if row.measured else {}
    count = int(values.get("batches", 0))
    names = [[f"{name}_of_{i}" for name in ("w", "entropy", "psnr")] for i in range(count)]
    return [(values[w], values[e], values[p]) for w, e, p in names if {w, e, p} <= values.keys()]


def histories(table: Table) -> dict[str, list[tuple[float, float]]]:
    """The losses of every attack over its steps, as its first cell noted them."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in table.rows:
        values = row.measured[0].outcome.values if row.measured else {}
        points = [
            (float(name.removeprefix("loss_at_")), v)
            for name, v in values.items()
            if name.startswith("loss_at_")
        ]
        if points:
            found[str(row.cell.attack)] = sorted(points)
    return found


def coordinate(cell: Cell, axis: str) -> float:
    """Where a cell stands on the axis: a batch, a number of labels alike, or the strength of its
    defense."""
    if axis == "strength":
        return 0.0 if cell.defense == NONE else float(cell.defense.partition(":")[2] or 1)
    return float(getattr(cell, axis))


def _pictures(table: Table) -> Any | None:
    """The client's photos above, then what each attack made of them."""
    strips = []
    for row in table.rows:
        blob = next(
            (result.outcome.picture for result in row.measured if result.outcome.picture), None
        )
        if blob is not None:
            strips.append((row, Image.open(io.BytesIO(blob)).convert("RGB")))
    if not strips:
        return None
    width, height = strips[0][1].size
    half = height // 2
    rows = [("original", strips[0][1].crop((0, 0, width, half)))]
    # rows of one attack differ in the defense: so it is named
    told = len({row.cell.defense for row, _ in strips}) > 1
    names = [
        f"{row.cell.attack}, {row.cell.defense}" if told else str(row.cell.attack)
        for row, _ in strips
    ]
    rows += [
        (name, strip.crop((0, half, width, height)))
        for name, (_, strip) in zip(names, strips, strict=True)
    ]
    with _plot((9.0, 9.0 * len(rows) * half / width + 0.4), len(rows)) as (drawn, axes):
        for one, (name, picture) in zip(axes, rows, strict=True):
            one.imshow(picture, interpolation="nearest")
            one.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
            one.set(xticks=[], yticks=[])
            one.grid(False)
            for side in one.spines.values():
                side.set_visible(False)
    return drawn


@contextmanager
def _plot(size: tuple[float, float] | None = None, rows: int = 1) -> Iterator[tuple[Any, Any]]:
    import matplotlib  # takes longer to import than most commands
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        drawn = Figure(figsize=size or _SIZE)  # no global state, no window
        axes = drawn.subplots(rows, 1, squeeze=rows == 1)
        yield drawn, axes if rows == 1 else [row[0] for row in axes]
