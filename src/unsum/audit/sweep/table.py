"""The sweep on a terminal: a table for each defense, and the answer below."""

from __future__ import annotations

import math
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from unsum.audit.sweep.bench import Point
from unsum.audit.sweep.result import Curve, SweepResult, closer, headline, level, sentences, short
from unsum.audit.texts import COLORS
from unsum.audit.wording import percent


def show(sweep: SweepResult, page: Path, console: Console) -> None:
    """Print the whole result."""
    for curve in sweep.curves:
        console.print(_table(sweep, curve))
    console.print(headline(sweep), style=COLORS[level(sweep)], markup=False, highlight=False)
    notes = [closer(sweep, curve) for curve in sweep.curves]
    for sentence in [*sentences(sweep), *filter(None, notes)]:
        console.print(f"• {sentence}", markup=False, highlight=False)
    console.print("A stronger attack may get more: leave a margin.", markup=False)
    console.print(f"Report: {page}", markup=False, highlight=False)


def _table(sweep: SweepResult, curve: Curve) -> Table:
    before = "" if sweep.setting.defenses == "none" else f", after {sweep.setting.defenses}"
    table = Table(
        title=f"{curve.name}{before}: worst and mean leakage of the samples", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column("strength", no_wrap=True)
    for heading in ("worst", "mean", f"≥{percent(sweep.keep_under)}", "labels", "PSNR", "exact", "acc.", "s"):
        table.add_column(heading, justify="right")
    enough = curve.enough(sweep.keep_under)
    for point, name in zip(sweep.references, ("no defense", "before alone"), strict=False):
        table.add_row(*_cells(sweep, point, name))
    for point in curve.points:
        mark = "" if point is not enough else " ← ruins" if sweep.ruins(point) else " ← enough"
        color = None if point is not enough else "yellow" if sweep.ruins(point) else "green"
        table.add_row(*_cells(sweep, point, short(point.strength) + mark), style=color)
    return table


def _cells(sweep: SweepResult, point: Point, name: str) -> list[str]:
    accuracy = percent(point.accuracy.mean) if point.accuracy else "–"
    if point.refused:
        return [name, "–", "–", "–", "–", "–", "–", accuracy, f"{point.seconds:.1f}"]
    total = len(sweep.titles)
    return [
        name,
        percent(point.worst),
        percent(point.mean),
        f"{point.over(sweep.keep_under)}/{total}",
        f"{point.labels_right}/{total}",
        "–" if math.isnan(point.psnr) else f"{point.psnr:.1f}",
        "yes" if point.exact else "no",
        accuracy,
        f"{point.seconds:.1f}",
    ]
