"""The report: one HTML page that opens from disk (no network, one small script, every picture inside), and its companions."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsum.audit.compare import Comparison
from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.markdown import render_markdown
from unsum.audit.pictures import data_uri, picture_grid
from unsum.audit.result import AuditResult, SampleRow, check_folder
from unsum.audit.sweep.plot import Plot, plot_side_by_side
from unsum.audit.texts import BADGES, advice, credits_of, glossary
from unsum.audit.verdict import CLOSE_ERROR
from unsum.audit.wording import error, fixed, percent, plain
from unsum.files.writing import write_text, write_whole
from unsum.knowledge import CHANGES_MODEL

if TYPE_CHECKING:
    from jinja2 import Environment

_MEANS = ("label_correct", "feature_error", "feature_cosine", "psnr", "ssim", "lpips")


@dataclass(frozen=True)
class ShownSample:
    """One row with its pictures as data URIs, or None where there is none to show."""

    row: SampleRow
    original: str | None
    recovered: str | None


def write_report(audit: AuditResult, folder: Path, *, force: bool) -> Path:
    """The page, the same as Markdown, the figures as JSON, and the pictures where there are some; where the page lies."""
    check_folder(folder, force=force)
    page = render(audit)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "report.html", page)
    write_text(folder / "report.md", render_markdown(audit))
    if audit.leak.images is not None:
        write_whole(folder / "pictures.png", lambda part: picture_grid(audit).save(part, format="PNG"))
    else:
        (folder / "pictures.png").unlink(missing_ok=True)  # those of an earlier audit would pass for this one's
    write_text(folder / "result.json", json.dumps(audit.to_dict(), indent=2) + "\n")
    return folder / "report.html"


def render(audit: AuditResult) -> str:
    """The complete page. Titles, class names and the command are escaped: they may come from anywhere."""
    rows = audit.rows
    verdict = audit.verdict
    template = environment().get_template("report.html.j2")
    return template.render(
        audit=audit,
        changes_model=CHANGES_MODEL,
        setting=audit.setting,
        leak=audit.leak,
        verdict=verdict,
        badge=BADGES[verdict.level],
        close_error=CLOSE_ERROR,
        shown=[ShownSample(row, data_uri(row.original), data_uri(row.recovered)) for row in rows],
        most=most_leaked(rows),
        means={name: audit.scores.get(name, math.nan) for name in _MEANS} | {"leakage": _mean(audit.leakages)},
        worst_error=audit.scores.get("worst_feature_error", math.nan),
        some_missing=any(row.found_label is None for row in rows),
        steps=advice(verdict.level),
        comparison=audit.comparison,
        compared=_compared(audit.comparison),
        keep_under=DEFAULT_LEVEL,
        glossary=glossary(),
        credits=credits_of(audit.truth.titles) if audit.truth else [],
    )


def _compared(comparison: Comparison) -> Plot | None:
    """The drawing of leakage by defense, where the round was played under several."""
    labels = [comparison.label(i) for i in range(len(comparison.points))]
    if comparison.audited_second:
        labels[1] = "audited"  # a chain of defenses would run into its neighbors; the table names it
    return plot_side_by_side(comparison.points, labels, DEFAULT_LEVEL) if labels else None


def environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # here, so that importing unsum does not import it

    environment = Environment(
        loader=PackageLoader("unsum.audit"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_fit,
    )
    environment.filters |= {
        "error": error,
        "fixed": fixed,
        "percent": lambda value: together(percent(value)),
        "together": together,
        "sortable": _sortable,
        "csp_hash": _csp_hash,
    }
    return environment


def most_leaked(rows: list[SampleRow]) -> SampleRow | None:
    """The sample that leaked most, where leakage is known at all."""
    return max((row for row in rows if not math.isnan(row.leakage)), key=lambda row: row.leakage, default=None)


def _fit(value: Any) -> Any:
    """Whatever a template prints; text without the characters that no page may carry, markup as it is."""
    return plain(value) if type(value) is str else value


def together(text: str) -> str:
    """The same with no line break between a number and its per cent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _sortable(value: float) -> str:
    """The whole number as JavaScript reads it."""
    return repr(float(value)) if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity"


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _csp_hash(block: str) -> str:
    """The Content-Security-Policy source that admits this one style or script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(block.encode()).digest()).decode("ascii")
