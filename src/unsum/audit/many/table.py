"""The findings of many updates as CSV, a line each, for spreadsheets."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from unsum.audit.finding import ClientFinding
from unsum.audit.wording import one_line
from unsum.files.writing import write_whole

COLUMNS = (
    *(
        "round",
        "client",
        "outcome",
        "state",
        "leakage",
        "certified",
        "predicted_error",
        "samples",
        "labels",
    ),
    *("num_examples", "local_steps", "attack", "seconds", "reason", "notes", "ceiling", "sha256"),
)
_FORMULA = ("=", "+", "-", "@")  # that a spreadsheet takes what begins with them for


def write_csv(
    path: Path,
    findings: Iterable[ClientFinding],
    ceiling_at: Callable[[int], float] = lambda _round: math.nan,
) -> Path:
    """Numbers as they are, and nothing where one is not known. Written whole or not at all, row by
    row.

    `ceiling_at` gives the ceiling after a round.
    """

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(COLUMNS)
            rows.writerows(
                [*_row(one), _number(ceiling_at(one.round)), one.sha256] for one in findings
            )

    return write_whole(path, write)


def _row(finding: ClientFinding) -> list[Any]:
    labels = " ".join(f"{label}:{count}" for label, count in sorted(finding.label_counts.items()))
    return [
        finding.round,
        _text(finding.client),
        finding.outcome,
        finding.state,
        _number(finding.leakage),
        "yes" if finding.exact else "no",
        _number(finding.predicted_error),
        finding.batch_size,
        labels,
        finding.num_examples,
        finding.local_steps,
        _text(finding.method),
        round(finding.seconds, 3),
        _text(finding.reason),
        _text(" ".join(finding.notes)),
    ]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _text(text: str) -> str:
    """On one line, and never a formula: names of clients come from elsewhere."""
    line = one_line(text)
    return f"'{line}" if line.startswith(_FORMULA) else line
