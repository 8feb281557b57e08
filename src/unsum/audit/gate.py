"""The gate for continuous integration: does any sample leak more than a level?

Build servers read JUnit XML, one test case for each sample, and SARIF 2.1.0, one result for each
finding.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from unsum.audit.ceiling_words import exceeded, exceeding, hides_labels
from unsum.audit.result import AuditResult, SampleRow, finite
from unsum.audit.verdict import UNVOUCHED
from unsum.audit.wording import one_line, percent, sample_count
from unsum.ceiling.result import Ceiling
from unsum.errors import UnsumError
from unsum.score.labels import LabelsRead
from unsum.score.occurred import RowsNamed
from unsum.version import __version__

Outcome = Literal["above", "within", "unknown"]
Result = Literal["passed", "failed", "undecided"]

EXIT_CODES: dict[Result, int] = {"passed": 0, "failed": 1, "undecided": 2}
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)

_RULES = {
    "sample-leakage": (
        "A private sample can be read back out of the update",
        "The leakage of a sample is above the level of the gate: 1 is all of it, 0 is no better "
        "than a guess without the update. Sweep a defense over its strengths (unsum audit --sweep) "
        "to find one that is enough.",
        "error",
        "8.0",
    ),
    "label-leakage": (
        "The label of a private sample can be read out of the update",
        (
            "The attack found the right label although the sample itself stays within the level of "
            "the gate."
        ),
        "note",
        "3.0",
    ),
    "ceiling-unproven": (
        "Nothing proves that a private sample cannot be read out of the update",
        "The ceiling of a sample, what nobody can exceed whatever is tried, is not proven to be "
        "below the level that was asked for (--prove-below). Add noise: a sweep of a defense says "
        "how much proves it (unsum audit --sweep).",
        "error",
        "6.0",
    ),
    "leakage-unknown": (
        "Nobody can tell how much of a sample leaked",
        "No attack that was tried applies to this update, or the truth is missing and none vouches "
        "for its answer: not decidable is not safe. The message says why.",
        "warning",
        "5.0",
    ),
}


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


def sentence(row: SampleRow) -> str:
    """What came back of one sample, for a line in a log."""
    if math.isnan(row.leakage):
        leaked = "how much of it leaked is not known"
    elif row.score is None:
        leaked = f"{row.leaked} leaked, by the attack's own certificate"
    else:
        leaked = f"{row.leaked} leaked"
    if row.found_label is None:
        return f"{row.title}: {leaked}; it was not found."
    # a mask, or a number to predict
    if row.score is not None and math.isnan(row.score.label_correct):
        return f"{row.title}: {leaked}."
    right = (
        ""
        if row.score is None
        else " (right)"
        if row.label_correct
        else f" (wrong: it is “{row.label}”)"
    )
    return f"{row.title}: {leaked}; found label “{row.found_label}”{right}."


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


def write_gate(
    audit: AuditResult, held: Gate, page: Path, *, junit: Path | None, sarif: Path | None
) -> None:
    """The files that build servers read; what an earlier run left in their place is replaced."""
    for file, content in (
        (junit, render_junit(audit, held)),
        (sarif, render_sarif(audit, held, page)),
    ):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")


def render_junit(audit: AuditResult, gate: Gate) -> str:
    """The complete file. ElementTree escapes what XML can hold; what it cannot hold is replaced
    before."""
    level = gate.prove_below
    unproven = level is not None and not gate.proven(level)
    counts = {
        "tests": str(len(gate.rows) + gate.fail_on_labels + (level is not None)),
        "failures": str(gate.count("above") + gate.by_labels + unproven),
        "errors": str(gate.count("unknown")),
        "time": f"{audit.seconds:.3f}",
    }
    root = Element("testsuites", {"name": "unsum audit"} | counts)
    name = f"unsum audit of {one_line(audit.setting.model)}"
    suite = SubElement(root, "testsuite", {"name": name, "skipped": "0"} | counts)
    properties = SubElement(suite, "properties")
    told = {
        "gate": gate.reason,
        "state": audit.verdict.state,
        "verdict": audit.verdict.headline,
        **{
            name: getattr(audit.setting, name)
            for name in ("model", "defenses", "attack", "seed", "command")
        },
        **{f"version of {name}": version for name, version in audit.setting.versions.items()},
    }
    for name, value in told.items():
        SubElement(properties, "property", name=one_line(name), value=one_line(str(value)))
    for number, row in enumerate(gate.rows, start=1):
        # Numbered, because build servers take cases of one name for one case and titles may repeat.
        case = SubElement(
            suite, "testcase", classname="unsum.audit", name=f"{number}. {row.title}", time="0"
        )
        outcome = gate.outcome(row)
        if outcome == "above":
            message = f"leakage {row.leaked} is above {percent(gate.level)}"
            SubElement(case, "failure", type="leakage", message=message).text = sentence(row)
        elif outcome == "unknown":
            message = f"leakage is not known: {one_line(gate.why)}"
            SubElement(case, "error", type="unknown", message=message).text = sentence(row)
        else:
            SubElement(case, "system-out").text = sentence(row)
    if gate.fail_on_labels:
        case = SubElement(suite, "testcase", classname="unsum.audit", name="labels", time="0")
        if gate.by_labels:
            SubElement(
                case, "failure", type="labels", message="labels are given away"
            ).text = "; ".join(gate.besides)
    if level is not None:
        case = SubElement(suite, "testcase", classname="unsum.audit", name="ceiling", time="0")
        if unproven:
            message = f"not every ceiling is proven to be below {percent(level)}"
            SubElement(case, "failure", type="ceiling", message=message).text = one_line(
                gate.reason
            )
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def render_sarif(audit: AuditResult, gate: Gate, report: Path | None = None) -> str:
    """The complete file; `report` is where the page lies, the only file that a finding can point
    at."""
    ids = list(_RULES)
    found = {"above": "sample-leakage", "unknown": "leakage-unknown"}
    named = [
        found.get(gate.outcome(row), "label-leakage" if row.label_correct else None)
        for row in gate.rows
    ]
    findings = [(rule, i) for i, rule in enumerate(named) if rule is not None]
    findings += [("ceiling-unproven", i) for i in gate.over]
    rules = [
        {
            "id": name,
            "shortDescription": {"text": short + "."},
            "fullDescription": {"text": full},
            "help": {"text": full},
            "defaultConfiguration": {"level": level},
            "properties": {"tags": ["security", "privacy"], "security-severity": severity},
        }
        for name, (short, full, level, severity) in _RULES.items()
    ]
    run = {
        "tool": {"driver": {"name": "unsum", "version": __version__, "rules": rules}},
        "invocations": [
            {
                "executionSuccessful": True,
                "commandLine": one_line(audit.setting.command),
                "exitCode": gate.exit_code,
                "exitCodeDescription": gate.reason,
            }
        ],
        "properties": finite(
            {
                "gate": gate.to_dict(),
                "state": audit.verdict.state,
                "seed": audit.setting.seed,
                "versions": audit.setting.versions,
            }
        ),
        "results": [_result(audit, gate, i, rule, ids.index(rule), report) for rule, i in findings],
    }
    return (
        json.dumps(
            {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False
        )
        + "\n"
    )


def _result(
    audit: AuditResult, gate: Gate, i: int, rule: str, index: int, report: Path | None
) -> dict[str, Any]:
    row = gate.rows[i]
    said = sentence(row) + (f" Not decidable: {gate.why}." if rule == "leakage-unknown" else "")
    if rule == "ceiling-unproven":
        below = percent(gate.prove_below or 0.0)
        said = (
            f"{row.title}: no ceiling is known, so that nothing proves it to stay below {below}."
            if math.isnan(row.ceiling)
            else f"{row.title}: its ceiling is {percent(row.ceiling)}, not proven to be below "
            f"{below}."
        )
    location: dict[str, Any] = {
        "logicalLocations": [{"name": one_line(audit.setting.model), "kind": "module"}]
    }
    if report is not None:
        location["physicalLocation"] = {
            "artifactLocation": {
                "uri": report.as_uri() if report.is_absolute() else quote(report.as_posix())
            },
            "region": {"startLine": 1},
        }
    identity = f"{rule}\n{audit.setting.model}\n{i}\n{row.title}"
    return {
        "ruleId": rule,
        "ruleIndex": index,
        "level": "error" if rule == "label-leakage" and gate.by_labels else _RULES[rule][2],
        "message": {"text": message_text(said)},
        "locations": [location],
        "partialFingerprints": {
            "sample/v1": hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()
        },
        "properties": finite(
            {
                "leakage": row.leakage,
                "found": row.leakage,
                "ceiling": row.ceiling,
                "read": row.shares.read,
                "sample_leakage": row.shares.sample,
                "sample": row.title,
            }
        ),
    }


def message_text(text: str) -> str:
    r"""As SARIF wants plain text: brackets would be links and braces placeholders.

    >>> print(message_text("see [this](https://example.org) {0}"))
    see \[this\](https://example.org) {{0}}
    """
    return re.sub(r"([\\\[\]])", r"\\\1", one_line(text)).replace("{", "{{").replace("}", "}}")
