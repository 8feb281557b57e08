"""The gate for continuous integration: does any sample leak more than a level?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from unsum.audit.result import SampleRow
from unsum.audit.wording import percent, sample_count
from unsum.errors import UnsumError

Outcome = Literal["above", "within", "unknown"]

EXIT_CODES = {"passed": 0, "failed": 1, "undecided": 2}


@dataclass(frozen=True)
class Gate:
    """Every sample against the level. A sample whose leakage is not known never passes: silence is no evidence."""

    level: float
    rows: list[SampleRow]

    def outcome(self, row: SampleRow) -> Outcome:
        if math.isnan(row.leakage):
            return "unknown"
        return "above" if row.leakage > self.level else "within"

    def count(self, outcome: Outcome) -> int:
        return sum(self.outcome(row) == outcome for row in self.rows)

    @property
    def result(self) -> Literal["passed", "failed", "undecided"]:
        if self.count("above"):
            return "failed"
        return "undecided" if self.count("unknown") or not self.rows else "passed"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.result]

    @property
    def reason(self) -> str:
        """Why, in one sentence."""
        total, level = len(self.rows), percent(self.level)
        if self.result == "undecided":
            return (
                f"Gate undecided: the leakage of {self.count('unknown')} of {sample_count(total)} is not known, because the "
                "truth is missing and the attack does not vouch for its answer; audit with samples whose truth you know."
            )
        most = max((row for row in self.rows if not math.isnan(row.leakage)), key=lambda row: row.leakage)
        if self.result == "passed":
            return (
                f"Gate passed: none of {sample_count(total)} leaks more than {level} (most: {percent(most.leakage)})."
            )
        over = self.count("above")
        leak = "leaks" if over == 1 else "leak"
        return (
            f"Gate failed: {over} of {sample_count(total)} {leak} more than {level} "
            f"(most: “{most.title}” with {percent(most.leakage)})."
        )

    def to_dict(self) -> dict[str, Any]:
        return {"level": self.level, "result": self.result, "above": self.count("above"), "reason": self.reason}


def check_level(level: float) -> None:
    """Refuse a level that says nothing, before an audit is run rather than after."""
    if not 0 <= level < 1:
        raise UnsumError(
            f"--fail-above takes a leakage from 0 to below 1, not {level:g}: 0.2 lets no sample leak more than a fifth of what "
            "sets it apart."
        )


def sentence(row: SampleRow) -> str:
    """What came back of one sample, for a line in a log."""
    if math.isnan(row.leakage):
        leaked = "how much of it leaked is not known"
    elif row.score is None:
        leaked = f"{percent(row.leakage)} of what sets it apart leaked, by the attack's own certificate"
    else:
        leaked = f"{percent(row.leakage)} of what sets it apart leaked"
    if row.found_label is None:
        return f"{row.title}: {leaked}; it was not found."
    right = "" if row.score is None else " (right)" if row.label_correct else f" (wrong: it is “{row.label}”)"
    return f"{row.title}: {leaked}; found label “{row.found_label}”{right}."
