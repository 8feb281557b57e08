"""The gate for continuous integration: does any sample leak more than a level?

What build servers read of it is in `gate_files`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unsum.audit.ceiling_words import exceeded, exceeding, hides_labels
from unsum.audit.result import SampleRow
from unsum.audit.verdict import UNVOUCHED
from unsum.audit.wording import percent, sample_count
from unsum.ceiling.result import Ceiling
from unsum.errors import UnsumError
from unsum.score.labels import LabelsRead
from unsum.score.occurred import RowsNamed

Outcome = Literal["above", "within", "unknown"]
Result = Literal["passed", "failed", "undecided"]

EXIT_CODES: dict[Result, int] = {"passed": 0, "failed": 1, "undecided": 2}


def result_of(leakages: Iterable[float], level: float) -> Result:
    """What every gate says of these leakages, of samples or of updates; NaN is one that nobody
    knows."""
    outcomes = {outcome_of(leakage, level) for leakage in leakages}
    if "above" in outcomes:
        return "failed"
    return "passed" if outcomes == {"within"} else "undecided"


def outcome_of(leakage: float, level: float) -> Outcome:
    if math.isnan(leakage):
        return "unknown"
    return "above" if leakage > level else "within"


@dataclass(frozen=True)
class Gate:
    """Every sample against the level. A sample whose leakage is not known never passes: silence is
    no evidence.

    The level is about samples. Labels, their distribution and the rows of embeddings that were read
    are told in the sentence of a gate that passes, and fail with `fail_on_labels`.
    """

    level: float
    rows: list[SampleRow]
    why: str = UNVOUCHED  # leakage is not known, where it is not
    # which the level is not about, and the reason tells of all the same
    labels: LabelsRead | None = None
    bound: Ceiling | None = None
    prove_below: float | None = None  # every ceiling must be proven to be below this level, too
    occurred: Sequence[RowsNamed] = ()  # as the labels
    headline: str = ""  # of a verdict over labels, words or label counts alone
    fail_on_labels: bool = False  # what is given away besides samples fails, too

    def outcome(self, row: SampleRow) -> Outcome:
        return outcome_of(row.leakage, self.level)

    def count(self, outcome: Outcome) -> int:
        return sum(self.outcome(row) == outcome for row in self.rows)

    @property
    def result(self) -> Result:
        found = result_of((row.leakage for row in self.rows), self.level)
        if self.by_labels:
            return "failed"
        if self.prove_below is None or found == "failed":
            return found
        if self.proven(self.prove_below):
            return "passed"  # whatever the attacks could not decide
        return "undecided" if self.bound is None else "failed"

    def proven(self, level: float) -> bool:
        """By ceilings of which none was exceeded."""
        return self.bound is not None and self.bound.decided(level) == "below" and not self.alarm

    @property
    def alarm(self) -> str:
        """Where more was found of a sample than its ceiling allows."""
        own = [row.shares.sample for row in self.rows]
        return "" if self.bound is None else exceeded(own, self.bound)

    @property
    def by_labels(self) -> bool:
        """Whether what is given away besides samples is what fails, or fails as well."""
        return self.fail_on_labels and bool(self.besides)

    @property
    def unproven(self) -> bool:
        """Whether the proof that was asked for is what is missing."""
        found = result_of((row.leakage for row in self.rows), self.level)
        return (
            self.prove_below is not None
            and found != "failed"
            and not self.by_labels
            and not self.proven(self.prove_below)
        )

    @property
    def over(self) -> list[int]:
        """The rows whose ceiling is not below the level of the proof; all where none is known."""
        level = self.prove_below
        if level is None or self.proven(level):
            return []
        wrong = (
            []
            if self.bound is None
            else exceeding([row.shares.sample for row in self.rows], self.bound)
        )
        return [i for i, row in enumerate(self.rows) if not row.ceiling < level or i in wrong]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.result]

    @property
    def reason(self) -> str:
        """Why, in one sentence."""
        total, level = len(self.rows), percent(self.level)
        if self.by_labels and not self.count("above"):
            within = (
                ""
                if self.count("unknown")
                else f", though none of {sample_count(total)} leaks more than {level}"
            )
            return f"Gate failed: {' and '.join(self.besides)}{within}."
        if self.unproven:
            return self._unproven()
        if self.prove_below is not None and self.result == "passed":
            top, below = (
                percent(self.bound.highest if self.bound else math.nan),
                percent(self.prove_below),
            )
            total = len(self.bound.samples) if self.bound else total
            passed = (
                f"Gate passed: nobody reads {below} of any of {sample_count(total)} (highest "
                f"ceiling: {top})"
            )
            return ", but ".join([passed, *self.besides]) + "."
        if self.result == "undecided":
            return (
                f"Gate undecided: the leakage of {self.count('unknown')} of {sample_count(total)} "
                f"is not known: {self.why.rstrip('.')}."
            )
        most = max(
            (row for row in self.rows if not math.isnan(row.leakage)), key=lambda row: row.leakage
        )
        if self.result == "passed":
            passed = (
                f"Gate passed: none of {sample_count(total)} leaks more than {level} (most: "
                f"{most.leaked})"
            )
            return ", but ".join([passed, *self.besides]) + f".{self._ceiling()}"
        over = self.count("above")
        leak = "leaks" if over == 1 else "leak"
        failed = (
            f"Gate failed: {over} of {sample_count(total)} {leak} more than {level} "
            f"(most: “{most.title}” with {most.leaked})"
        )
        return ", and ".join([failed, *(self.besides if self.by_labels else [])]) + "."

    def _unproven(self) -> str:
        below = percent(self.prove_below or 0.0)
        if self.bound is None:
            return (
                "Gate undecided: no ceiling is known, so that nothing is proven to stay below "
                f"{below}."
            )
        if self.alarm:
            return f"Gate failed: {self.alarm[:1].lower()}{self.alarm[1:]}"
        over = int((self.bound.samples >= (self.prove_below or 0.0)).sum())
        return (
            f"Gate failed: the ceiling of {over} of {sample_count(len(self.bound.samples))} is not "
            f"proven to be below {below} (highest: {percent(self.bound.highest)})."
        )

    def _ceiling(self) -> str:
        """What a passed gate does not show."""
        if self.alarm:
            return f" {self.alarm}"
        if self.bound is None or self.proven(self.level):
            return ""
        return (
            " Nothing proves that other attacks do not: the ceiling is "
            f"{percent(self.bound.highest)}."
        )

    @property
    def besides(self) -> list[str]:
        """What is given away of samples within the level; labels that were right by luck are
        not."""
        read, hidden = self.labels, self.bound is not None and hides_labels(self.bound)
        told = read is not None and read.given_away and not hidden
        said = (
            [f"the labels are given away: {read.right} of {read.total} were read"]
            if read and told
            else []
        )
        if any(named.given_away for named in self.occurred):
            said.append("which tokens or categories occur is given away")
        return said or (
            [self.headline[:1].lower() + self.headline[1:].rstrip(".")] if self.headline else []
        )

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "level": self.level,
            "result": self.result,
            "above": self.count("above"),
            "reason": self.reason,
        }
        found |= {"fail_on_labels": self.fail_on_labels, "besides": self.besides}
        return found | {
            "prove_below": self.prove_below,
            "over_ceiling": None if self.prove_below is None else len(self.over),
            "proven": self.proven(self.prove_below or self.level),
        }


def check_level(level: float, option: str = "--fail-above") -> None:
    """Refuse a level that says nothing, before an audit is run rather than after."""
    if not 0 <= level < 1:
        raise UnsumError(
            f"{option} takes a leakage from 0 to below 1, not {level:g}: 0.2 lets no sample leak "
            "more than a fifth of what a guess without the update leaves open."
        )


def check_proof(level: float) -> None:
    """Refuse a level that no ceiling can be below."""
    if not 0 < level < 1:
        raise UnsumError(
            f"--prove-below takes a leakage from above 0 to below 1, not {level:g}: 0.2 proves "
            "that nobody reads a fifth of what a guess without the update leaves open."
        )


def check_gate(
    level: float | None,
    junit: Path | None,
    sarif: Path | None,
    *,
    sweeping: bool,
    prove_below: float | None = None,
    fail_on_labels: bool = False,
) -> None:
    """Refuse what could only fail later: a level that says nothing, and files that cannot be
    written."""
    given = {
        "--fail-above": level,
        "--prove-below": prove_below,
        "--junit": junit,
        "--sarif": sarif,
    }
    given["--fail-on-labels"] = True if fail_on_labels else None
    asked = [name for name, value in given.items() if value is not None]
    if sweeping and asked:
        raise UnsumError(
            f"{asked[0]} belongs to a single audit; leave it out, or leave out --sweep."
        )
    if level is not None:
        check_level(level)
    if prove_below is not None:
        check_proof(prove_below)
    for file in (junit, sarif):
        if file is not None and file.is_dir():
            raise UnsumError(f"{str(file)!r} is a folder; name a file in it.")
