"""Sweep: the answer as users get it, written as one HTML page that opens from disk: no network, no script, all inside."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from unsum.audit.pictures import data_uri
from unsum.audit.point import Point
from unsum.audit.report import environment, together
from unsum.audit.result import UNFINISHED, check_folder
from unsum.audit.sweep.plot import Plot, plot
from unsum.audit.sweep.result import Curve, SweepResult
from unsum.audit.sweep.words import closer, headline, level, sentences, short
from unsum.audit.texts import credits_of
from unsum.audit.wording import percent
from unsum.defend import DEFENSES
from unsum.files.writing import write_text


@dataclass(frozen=True)
class StrengthRow:
    """One strength as the page shows it; pictures are data URIs."""

    point: Point
    label: str
    cost: float
    enough: bool
    title: str  # of the sample that leaked most
    original: str | None
    recovered: str | None


@dataclass(frozen=True)
class Section:
    """One defense on the page."""

    curve: Curve
    summary: str
    plot: Plot
    rows: list[StrengthRow]
    notes: list[str]


class Sweep(SweepResult):
    """The answer to: how strong must a defense be here, and what does that cost?

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> result = unsum.sweep(model, data, over="sign", utility=False)
        >>> round(result.undefended.worst, 1), len(result.curves)
        (1.0, 1)
    """

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write `sweep.html` and `sweep.json`; an existing folder is written to only with `force`."""
        folder = Path(folder)
        check_folder(folder, force=force)
        page = render(self)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "sweep.html", page)
        write_text(folder / "sweep.json", json.dumps(self.to_dict(), indent=2) + "\n")
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)  # what an interrupted sweep had kept
        return folder / "sweep.html"


def render(sweep: SweepResult) -> str:
    """The complete page. Titles and the command are escaped: they may come from anywhere."""
    template = environment().get_template("sweep.html.j2")
    return template.render(
        sweep=sweep,
        setting=sweep.setting,
        task=sweep.task,
        headline=together(headline(sweep)),
        level=level(sweep),
        sentences=[together(sentence) for sentence in sentences(sweep)],
        sections=[_section(sweep, curve) for curve in sweep.curves],
        credits=credits_of(sweep.titles),
        percent=lambda value: together(percent(value)),
    )


def _section(sweep: SweepResult, curve: Curve) -> Section:
    enough = curve.enough(sweep.keep_under)
    names = ["no defense", f"{sweep.setting.defenses} alone"]
    rows = [_row(sweep, point, name, False) for point, name in zip(sweep.references, names, strict=False)]
    rows += [_row(sweep, point, short(point.strength), point is enough) for point in curve.points]
    reasons = [f"{row.label}: {reason}" for row in rows for reason in (row.point.refused,) if reason]
    untrained = {row.point.untrained for row in rows if row.point.untrained} if sweep.task else set()
    summary = next((entry.summary for entry in DEFENSES if entry.name == curve.name), "")
    return Section(
        curve,
        summary,
        plot(sweep, curve),
        rows,
        [note for note in (closer(sweep, curve),) if note]
        + [f"Not attacked at {reason}" for reason in reasons]
        + [f"Accuracy was not measured: {reason}" for reason in sorted(untrained)],
    )


def _row(sweep: SweepResult, point: Point, label: str, enough: bool) -> StrengthRow:
    most = max(point.samples, key=lambda row: row.leakage, default=None)
    original, recovered = point.pictures or (None, None)
    return StrengthRow(
        point,
        label,
        sweep.cost(point),
        enough,
        most.title if most else "",
        *(
            data_uri(picture, "jpeg", quality=85) for picture in (original, recovered)
        ),  # many must stay small enough to send
    )
