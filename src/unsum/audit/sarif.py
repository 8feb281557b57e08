"""The gate as SARIF 2.1.0, which code-scanning services show: one result for each finding."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from unsum.audit.gate import Gate, sentence
from unsum.audit.plain import one_line
from unsum.audit.result import Audit, finite
from unsum.audit.rows import Row
from unsum.version import __version__

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_RULES = {
    "sample-leakage": (
        "A private sample can be read back out of the update",
        "The leakage of a sample is above the level of the gate: 1 is the sample itself, 0 is no better than a typical sample "
        "of the client. Sweep a defense over its strengths (unsum audit --sweep) to find one that is enough.",
        "error",
        "8.0",
    ),
    "label-leakage": (
        "The label of a private sample can be read out of the update",
        "The attack found the right label although the sample itself stays within the level of the gate.",
        "note",
        "3.0",
    ),
    "leakage-unknown": (
        "Nobody can tell how much of a sample leaked",
        "The truth is missing and the attack does not vouch for its answer. Audit with samples whose truth you know.",
        "warning",
        "5.0",
    ),
}


def render_sarif(audit: Audit, gate: Gate, report: Path | None = None) -> str:
    """The complete file; `report` is where the page lies, the only file that a finding can point at."""
    ids = list(_RULES)
    findings = [(rule, i) for i, row in enumerate(gate.rows) if (rule := _rule(gate, row))]
    run = {
        "tool": {
            "driver": {
                "name": "unsum",
                "version": __version__,
                "rules": [_describe(name) for name in ids],
            }
        },
        "invocations": [
            {
                "executionSuccessful": True,
                "commandLine": one_line(audit.setting.command),
                "exitCode": gate.exit_code,
                "exitCodeDescription": gate.reason,
            }
        ],
        "properties": finite({"gate": gate.to_dict(), "seed": audit.setting.seed, "versions": audit.setting.versions}),
        "results": [_result(audit, gate.rows[i], i, rule, ids.index(rule), report) for rule, i in findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def _rule(gate: Gate, row: Row) -> str | None:
    outcome = gate.outcome(row)
    if outcome == "within":
        return "label-leakage" if row.label_correct else None
    return "sample-leakage" if outcome == "above" else "leakage-unknown"


def _describe(name: str) -> dict[str, Any]:
    short, full, level, severity = _RULES[name]
    return {
        "id": name,
        "shortDescription": {"text": short + "."},
        "fullDescription": {"text": full},
        "help": {"text": full},
        "defaultConfiguration": {"level": level},
        "properties": {"tags": ["security", "privacy"], "security-severity": severity},
    }


def _result(audit: Audit, row: Row, i: int, rule: str, index: int, report: Path | None) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"name": one_line(audit.setting.model), "kind": "module"}]}
    if report is not None:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": report.as_uri() if report.is_absolute() else quote(report.as_posix())},
            "region": {"startLine": 1},
        }
    identity = f"{rule}\n{audit.setting.model}\n{i}\n{row.title}"
    return {
        "ruleId": rule,
        "ruleIndex": index,
        "level": _RULES[rule][2],
        "message": {"text": message_text(sentence(row))},
        "locations": [location],
        "partialFingerprints": {"sample/v1": hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()},
        "properties": {"leakage": None if math.isnan(row.leakage) else row.leakage, "sample": row.title},
    }


def message_text(text: str) -> str:
    r"""As SARIF wants plain text: brackets would be links and braces placeholders.

    >>> print(message_text("see [this](https://example.org) {0}"))
    see \[this\](https://example.org) {{0}}
    """
    return re.sub(r"([\\\[\]])", r"\\\1", one_line(text)).replace("{", "{{").replace("}", "}}")
