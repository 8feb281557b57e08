"""The audit as one HTML page that opens from disk: no network, no script, every picture inside."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from unsum.audit.pictures import to_image
from unsum.audit.result import Audit
from unsum.audit.verdict import CLOSE_ERROR, Level
from unsum.models.lpips import lpips_status
from unsum.score import SampleScore

_BADGES: dict[Level, str] = {
    "severe": "Severe leakage",
    "partial": "Partial leakage",
    "labels": "Label leakage",
    "low": "Low leakage",
}
_MEANS = ("label_correct", "feature_error", "feature_cosine", "psnr", "ssim", "lpips")
_NOT_MEASURED = "–"


@dataclass(frozen=True)
class Row:
    """One true sample as the page shows it; a picture is a data URI, or None where there is none to show."""

    title: str
    label: str | None
    found_label: str | None
    score: SampleScore | None  # None without the truth
    original: str | None
    recovered: str | None


def render(audit: Audit) -> str:
    """The complete page. Titles, class names and the command are escaped: they may come from anywhere."""
    rows = [_row(audit, i) for i in range(audit.rows)]
    verdict = audit.verdict
    template = environment().get_template("report.html.j2")
    return template.render(
        audit=audit,
        setting=audit.setting,
        leak=audit.leak,
        verdict=verdict,
        badge=_BADGES[verdict.level],
        close_error=CLOSE_ERROR,
        rows=rows,
        means={name: audit.scores.get(name, math.nan) for name in _MEANS},
        worst_error=audit.scores.get("worst_feature_error", math.nan),
        some_missing=any(row.found_label is None for row in rows),
        lpips_missing=lpips_status(),
        credits=credits_of(audit.truth.titles) if audit.truth else [],
    )


def environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("unsum.audit"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"error": _error, "fixed": _fixed, "csp_hash": _csp_hash}
    return environment


def _row(audit: Audit, i: int) -> Row:
    score, images = None if audit.truth is None else audit.samples[i], audit.leak.images
    found = i if score is None else score.found
    return Row(
        title=audit.title(i),
        label=None if audit.truth is None else audit.true_label(i),
        found_label=audit.found_label(i),
        score=score,
        original=None if audit.truth is None else _data_uri(audit.truth.images[i]),
        recovered=None if images is None or found is None else _data_uri(images[found]),
    )


def _data_uri(picture: Tensor) -> str | None:
    """A (1 or 3, h, w) tensor in [0, 1] as PNG; None for samples that are no pictures, such as rows of a table."""
    if picture.ndim != 3 or len(picture) not in (1, 3):
        return None
    buffer = io.BytesIO()
    to_image(picture).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def credits_of(titles: list[str]) -> list[dict[str, str]]:
    """Author and licence of every photo, if all carry titles of embedded ones, else nothing: somebody's own photos."""
    manifest = (files("unsum.data") / "photos" / "manifest.json").read_text("utf-8")
    known: dict[str, dict[str, str]] = {photo["title"]: photo for photo in json.loads(manifest)}
    return [known[title] for title in titles] if all(title in known for title in titles) else []


def _error(value: float) -> str:
    """1.7e-07, but 0.35: powers of ten only where they help."""
    return f"{value:.1e}" if 0 < value < 0.01 else _fixed(value, 2)


def _fixed(value: float, digits: int) -> str:
    if math.isnan(value):
        return _NOT_MEASURED
    return f"{value:.{digits}f}" if math.isfinite(value) else "∞"


def _csp_hash(style: str) -> str:
    """The Content-Security-Policy source that admits this one style block and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
