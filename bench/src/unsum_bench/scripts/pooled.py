"""Tasks of a table on several processes, for so many minutes; what is measured is kept as it
comes."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any


def rows_within(
    measure: Callable[[Any], Any],
    tasks: Sequence[Any],
    processes: int,
    minutes: float,
    kept: Path | None,
) -> list[Any]:
    """The rows (dataclasses) that were measured in that time, in the order in which they came; a
    file holds them, too."""
    rows, end = [], time.monotonic() + 60 * minutes
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        answers = pool.imap_unordered(measure, tasks)
        for _ in tasks:
            try:
                rows.append(answers.next(max(0.0, end - time.monotonic())))
            except multiprocessing.TimeoutError:
                break
            if kept:
                kept.write_text(json.dumps([asdict(row) for row in rows], indent=0))
        pool.terminate()
    return rows
