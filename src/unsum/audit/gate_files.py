"""What build servers read of a gate: JUnit XML, one test case for each sample, and SARIF 2.1.0, one
result for each finding."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from unsum.audit.gate import Gate
from unsum.audit.result import AuditResult, SampleRow, finite
from unsum.audit.wording import one_line, percent
from unsum.version import __version__

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
