"""What `unsum audit` prints of a round (the setting, samples beside the truth, other defenses, the
verdict) and of a sweep."""

from __future__ import annotations

import math
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from unsum.audit import Audit
from unsum.audit.ceiling_words import ceiling_of
from unsum.audit.compare import Comparison
from unsum.audit.distribution import LabelDistribution
from unsum.audit.leakage import Tried
from unsum.audit.report import COLORS, pictured
from unsum.audit.result import SampleRow
from unsum.audit.sweep.bench import Point
from unsum.audit.sweep.result import Curve, SweepResult, closer, headline, level, sentences, short
from unsum.audit.table_rows import TableRows
from unsum.audit.wording import error, fixed, percent, plain
from unsum.commands.stages import OUT
from unsum.knowledge import CHANGES_MODEL
from unsum.showing.level import DEFAULT_LEVEL

_COLUMNS = 6  # of a table's rows, that fit a terminal


def show(result: Audit, page: Path) -> None:
    verdict = result.verdict
    if result.truth is not None and result.truth.resized:
        OUT.print(result.truth.resized, soft_wrap=True)
    OUT.print(_setting_table(result))
    if result.rows:
        OUT.print(_sample_table(result))
    if result.distribution is not None:
        OUT.print(distribution_table(result.distribution))
    if result.table is not None:
        OUT.print(_row_table(result.table))
    show_tried(result.tried)
    if result.comparison.points:
        OUT.print(_comparison_table(result.comparison))
        for sentence in result.comparison.answers:
            OUT.print(f"• {plain(sentence)}", markup=False)
    OUT.print(verdict.headline, style=COLORS[verdict.level])
    if verdict.alarm:
        OUT.print(verdict.alarm, style="bold red")
    rows = [] if result.table is None else result.table.sentences
    for sentence in filter(None, [*rows, *verdict.details, *result.leak.notes, result.trained_on]):
        OUT.print(f"• {plain(sentence)}")
    OUT.print(f"Report: {page}")


def _setting_table(result: Audit) -> Table:
    leak, setting = result.leak, result.setting
    found: int | str = leak.distinct if result.texts is None else len(result.texts.found)
    if not result.rows and (result.distribution is not None or leak.made_up):
        found = "none told apart"
    what = f"{_called(result)}s"
    batch = f"{setting.batch_size} {what}" if result.truth else "of unknown size"
    which = " distinct" if leak.uncounted and result.texts is None else ""
    there = f" (there are {setting.batch_size})" if result.truth else ""
    facts: dict[str, str | Text] = {
        "model": setting.model,
        "private batch": (
            f"{batch}, {f'{setting.classes} classes, ' if result.labeled else ''}{setting.mode} "
            "mode"
        ),
        "defense": setting.defenses,
        "granted to the attacker": _granted(result),
        "attack": setting.attack,
        f"{result.kind}s found": "; ".join(
            filter(None, [f"{found}{which}{there}", leak.uncounted])
        ),
        "certificate": "exact" if leak.exact else "not exact",
        "predicted feature error": error(leak.predicted_error),
        "gradient scale found": f"{leak.scale:.6g}",
        "time": (
            f"attack {leak.seconds:.2f} s, everything {result.seconds:.1f} s on {setting.device}"
        ),
    }
    table = Table(
        show_header=False, title="One federated round, seen by the server", title_justify="left"
    )
    for name, value in facts.items():
        table.add_row(name, value if isinstance(value, Text) else Text(plain(value)))
    return table


def _called(result: Audit) -> str:
    """What one of the client's samples is."""
    if result.texts is not None:
        return "text"
    return "row" if result.table is not None else "photo" if pictured(result) else "sample"


def _granted(result: Audit) -> Text:
    """What no honest server may do stands out in red."""
    lines = [
        Text(plain(line), "bold red" if line == CHANGES_MODEL else "") for line in result.granted
    ]
    return Text("\n").join(lines)


def _sample_table(result: Audit) -> Table:
    """The samples; titles and labels as `Text`, because names from outside must not be read as
    rich's markup."""
    compared, pictures = result.truth is not None, result.leak.images is not None
    if result.texts is not None:
        return _text_table(result)
    table = Table(
        title="Recovered, beside the truth" if compared else "Recovered", title_justify="left"
    )
    label = "label" if result.labeled else "target"
    for heading in (_called(result), label) if compared else ("sample", f"{label} found"):
        # a long name goes on in the next line, and is never cut
        table.add_column(heading, overflow="fold")
    split = any(row.shares.read == "features" for row in result.rows)
    figures = [
        *(["features", result.sizes.noun] if split else ["found"]),
        "ceiling",
        *(["PSNR (dB)", "SSIM"] if pictures else ["feature error"]),
    ]
    for heading in figures if compared else ("leakage, certified",):
        table.add_column(heading, justify="right")
    for row in result.rows:
        table.add_row(*_cells(row, pictures, split=split))
    return table


def _text_table(result: Audit) -> Table:
    table = Table(
        "text",
        title="Recovered, beside the truth" if result.truth else "Recovered",
        title_justify="left",
    )
    for heading in ("as it was", "recovered") if result.truth else ("recovered",):
        table.add_column(heading)
    for heading in ("found", "ceiling") if result.truth else ("certified",):
        table.add_column(heading, justify="right")
    for row in result.rows:
        found = Text(row.found_label or "not found", "green" if row.label_correct else "")
        shares = [percent(row.leakage), *([percent(row.ceiling)] if result.truth else [])]
        table.add_row(
            Text(row.title), *([Text(row.label or "")] if result.truth else []), found, *shares
        )
    return table


def distribution_table(told: LabelDistribution) -> Table:
    """How many samples of each class a client of several local steps has."""
    truth_known = any(one.true is not None for one in told.classes)
    table = Table("class", title="The client's labels", title_justify="left")
    for heading in (
        "found",
        f"interval ({100 * told.level:.0f} %)",
        *(["true"] if truth_known else []),
    ):
        table.add_column(heading, justify="right")
    for one in told.classes:
        table.add_row(Text(plain(one.name)), *one.cells[: 3 if truth_known else 2])
    return table


def _row_table(rows: TableRows) -> Table:
    """The first columns of every row, and below what came back of it; the report has them all."""
    more = len(rows.columns) - _COLUMNS
    title = "Row by row: as it was, and below as it came back" + (
        f" ({more} more columns in the report)" if more > 0 else ""
    )
    table = Table("row", title=title, title_justify="left")
    for name in rows.columns[:_COLUMNS]:
        table.add_column(Text(name), overflow="fold")
    for row in rows.rows:
        table.add_row(Text(row.title), *map(Text, row.true[:_COLUMNS]))
        cells = zip(row.found or [], row.same, strict=True)
        found = [Text(cell, "green" if same else "red") for cell, same in list(cells)[:_COLUMNS]]
        table.add_row("", *(found or [Text("not read")]), end_section=True)
    return table


def show_tried(tried: list[Tried]) -> None:
    """A line for every attack: what it got, and why that is nothing where it refused or does not
    apply."""
    before = ""
    for one in tried:
        why = (
            f" ({'for the same reason' if one.remark == before else plain(one.remark)})"
            if one.empty
            else ""
        )
        before = one.remark if one.empty else before
        OUT.print(f"Tried {one.attack}: {one.got}{why}", markup=False, highlight=False)


def _comparison_table(comparison: Comparison) -> Table:
    table = Table(title="The same round under other defenses", title_justify="left")
    table.add_column("defense", no_wrap=True)
    for heading in ("found", "ceiling", "labels", "accuracy"):
        table.add_column(heading, justify="right")
    table.add_column("verdict", no_wrap=True)
    for i, point in enumerate(comparison.points):
        labels = point.labels_named.replace(" of ", "/")
        accuracy = percent(point.accuracy.mean) if point.accuracy else "–"
        figures = (
            percent(point.worst),
            ceiling_of(point),
            labels,
            accuracy,
            point.verdict(DEFAULT_LEVEL),
        )
        table.add_row(Text(comparison.label(i)), *figures)
    return table


def _cells(row: SampleRow, pictures: bool, *, split: bool) -> list[str | Text]:
    found = row.found_label or "not found"
    if row.score is None:
        return [
            Text(row.title),
            Text(found),
            row.leaked if row.leakage == row.leakage else percent(row.leakage),
        ]
    return [
        Text(row.title),
        _label(row, found, row.score.label_correct),
        *(
            [percent(row.shares.features), percent(row.shares.sample)]
            if split
            else [percent(row.leakage)]
        ),
        percent(row.ceiling),
        *(
            [fixed(row.score.psnr, 1), fixed(row.score.ssim, 2)]
            if pictures
            else [error(row.score.feature_error)]
        ),
    ]


def _label(row: SampleRow, found: str, correct: float) -> Text:
    """The true label in green where it was read; else what was taken for it stands behind it."""
    if row.label_correct:
        return Text(f"{row.label} ✓", style="green")
    return Text(f"{row.label} → {found}", style="" if math.isnan(correct) else "red")


def show_sweep(sweep: SweepResult, page: Path) -> None:
    """A table for each defense, and the answer below."""
    for curve in sweep.curves:
        OUT.print(_sweep_table(sweep, curve))
    OUT.print(headline(sweep), style=COLORS[level(sweep)])
    notes = [closer(sweep, curve) for curve in sweep.curves]
    for sentence in [*sentences(sweep), *filter(None, notes)]:
        OUT.print(f"• {sentence}")
    OUT.print(f"Report: {page}")


def _sweep_table(sweep: SweepResult, curve: Curve) -> Table:
    before = "" if sweep.setting.defenses == "none" else f", after {sweep.setting.defenses}"
    table = Table(
        title=f"{curve.name}{before}: worst and mean found, and the ceiling",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("strength", no_wrap=True)
    for heading in (
        "worst",
        "ceiling",
        "mean",
        f"not <{percent(sweep.keep_under)}",
        "labels",
        "PSNR",
        "acc.",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    enough = curve.enough(sweep.keep_under)
    for point, name in zip(sweep.references, ("no defense", "before alone"), strict=False):
        table.add_row(*_sweep_cells(sweep, point, name))
    for point in curve.points:
        proven = point.proven(sweep.keep_under)
        word = "proven" if proven else "unproven"
        mark = (
            ""
            if point is not enough and not proven
            else " ← ruins"
            if sweep.ruins(point)
            else f" ← {word}"
        )
        color = None if not mark else "green" if proven and not sweep.ruins(point) else "yellow"
        table.add_row(*_sweep_cells(sweep, point, short(point.strength) + mark), style=color)
    return table


def _sweep_cells(sweep: SweepResult, point: Point, name: str) -> list[str]:
    accuracy = percent(point.accuracy.mean) if point.accuracy else "–"
    if point.refused:
        return [name, "–", ceiling_of(point), "–", "–", "–", "–", accuracy]
    total = len(sweep.titles)
    return [
        name,
        percent(point.worst),
        ceiling_of(point),
        percent(point.mean),
        f"{point.over(sweep.keep_under)}/{total}",
        point.labels_named.replace(" of ", "/"),
        "–" if math.isnan(point.psnr) else f"{point.psnr:.1f}",
        accuracy,
    ]
