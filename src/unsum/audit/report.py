"""The report: one HTML page that opens from disk (no network, one small script, every picture inside), and its companions."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from unsum.audit.compare import Comparison
from unsum.audit.gate import Gate, check_level
from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.pictures import data_uri, picture_grid
from unsum.audit.result import AuditResult, SampleRow
from unsum.audit.sweep.bench import mean_of
from unsum.audit.sweep.plot import Plot, plot_side_by_side
from unsum.audit.texts import BADGES, BLURRED, PRICED, advice, credits_of, glossary, unpictured
from unsum.audit.verdict import UNVOUCHED
from unsum.audit.wording import error, fixed, markdown, percent, plain, sample_count
from unsum.files.report_folder import check_folder
from unsum.files.writing import write_text, write_whole
from unsum.knowledge import CHANGES_MODEL

if TYPE_CHECKING:
    from jinja2 import Environment

_SHOWN = 5  # samples of a printed audit
_MEANS = ("label_correct", "feature_error", "feature_cosine", "psnr", "ssim", "lpips")


class Audit(AuditResult):
    """What the attack made of one update, beside the truth where the round was simulated.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> report = unsum.audit(model, data)
        >>> print(report)
        This update gives away every sample of the batch.
        Attack: exact on Linear.
        Leakage: sample 1: 100 %, sample 2: 100 %, sample 3: 100 %.
        >>> report.gate(0.2).exit_code
        1
    """

    def gate(self, level: float = DEFAULT_LEVEL) -> Gate:
        """Whether any sample leaks more than `level`, from 0 to below 1: `.result`, `.exit_code` and `.reason` say."""
        check_level(level)
        whole = SampleRow("the whole update", None, None, math.nan, None, None, None)  # silence is no evidence
        return Gate(level, self.rows or [whole], self.verdict.reason or self.undecided or UNVOUCHED)

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write `report.html`, `report.md`, `result.json` and, where there are pictures, `pictures.png`.

        An existing folder is written to only with `force`.
        """
        folder = Path(folder)
        check_folder(folder, force=force)
        page = render(self)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "report.html", page)
        write_text(folder / "report.md", render_markdown(self))
        if self.leak.images is not None:
            write_whole(folder / "pictures.png", lambda part: picture_grid(self).save(part, format="PNG"))
        else:
            (folder / "pictures.png").unlink(missing_ok=True)  # those of an earlier audit would pass for this one's
        write_text(folder / "result.json", json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")
        return folder / "report.html"

    def __repr__(self) -> str:
        """What a person wants to know first; every figure is in `to_dict()` and in the report that `write` makes."""
        shown = [row for row in self.rows if not math.isnan(row.leakage)]
        leaked = [
            f"{row.title}: {percent(row.leakage)}"
            for row in sorted(shown, key=lambda row: -round(row.leakage, 2))[:_SHOWN]
        ]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        unknown = f"; of {len(self.rows) - len(shown)} not known" if leaked and len(shown) < len(self.rows) else ""
        lines = [self.verdict.headline, f"Attack: {self.setting.attack} on {self.setting.model}."]
        return "\n".join([*lines, *([f"Leakage: {', '.join(leaked)}{more}{unknown}."] if leaked else [])])


def render(audit: AuditResult) -> str:
    """The complete page. Titles, class names and the command are escaped: they may come from anywhere."""
    pictures = [(row, data_uri(row.original), data_uri(row.recovered)) for row in audit.rows]
    shown = [{"row": row, "original": original, "recovered": recovered} for row, original, recovered in pictures]
    drawn = any(original or recovered for _, original, recovered in pictures)  # rows of a table are not
    page = environment().get_template("report.html.j2")
    return page.render(**_told(audit), shown=shown, drawn=drawn, compared=_compared(audit.comparison))


def render_markdown(audit: AuditResult) -> str:
    """The same for a pull request, a wiki or a ticket; the pictures lie beside it in `pictures.png`."""
    pages = environment(lambda value: Markup(markdown(value)) if type(value) is str else value)
    pages.filters |= {"percent": percent, "sample_count": sample_count}
    command = audit.setting.command
    again = _block(command) if command else "Started from Python: call `unsum.audit` with this setting."
    return pages.get_template("report.md.j2").render(**_told(audit), again=Markup(again))


def _told(audit: AuditResult) -> dict[str, Any]:
    """What both templates show."""
    rows, verdict = audit.rows, audit.verdict
    return {
        "audit": audit,
        "rows": rows,
        "changes_model": CHANGES_MODEL,
        "setting": audit.setting,
        "leak": audit.leak,
        "verdict": verdict,
        "badge": BADGES[verdict.level],
        "most": max((row for row in rows if not math.isnan(row.leakage)), key=lambda row: row.leakage, default=None),
        "means": {name: audit.scores.get(name, math.nan) for name in _MEANS}
        | {"leakage": mean_of([value for value in audit.leakages if not math.isnan(value)])},
        "worst_error": audit.scores.get("worst_feature_error", math.nan),
        "some_missing": any(row.found_label is None for row in rows),
        "steps": advice(verdict.level, truth_known=audit.truth is not None),
        "comparison": audit.comparison,
        "keep_under": DEFAULT_LEVEL,
        "meaning": BLURRED,
        "unpictured": unpictured(audit),
        "priced": PRICED,
        "glossary": glossary(),
        "credits": credits_of(audit.truth.titles) if audit.truth else [],
    }


def _block(command: str) -> str:
    """A fence longer than any run of backticks inside, so that the command cannot end it."""
    command = "\n".join(plain(command).splitlines())
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
    return f"{fence}console\n{command}\n{fence}"


def _compared(comparison: Comparison) -> Plot | None:
    """The drawing of leakage by defense, where the round was played under several."""
    labels = [comparison.label(i) for i in range(len(comparison.points))]
    if comparison.audited_second:
        labels[1] = "audited"  # a chain of defenses would run into its neighbors; the table names it
    return plot_side_by_side(comparison.points, labels, DEFAULT_LEVEL) if labels else None


def _fit(value: Any) -> Any:
    """Whatever a template prints; text without the characters that no page may carry, markup as it is."""
    return plain(value) if type(value) is str else value


def environment(finalize: Callable[[Any], Any] = _fit) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # here, so that importing unsum does not import it

    environment = Environment(
        loader=PackageLoader("unsum.audit"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
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


def together(text: str) -> str:
    """The same with no line break between a number and its per cent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _sortable(value: float) -> str:
    """The whole number as JavaScript reads it."""
    return repr(float(value)) if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity"


def _csp_hash(block: str) -> str:
    """The Content-Security-Policy source that admits this one style or script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(block.encode()).digest()).decode("ascii")
