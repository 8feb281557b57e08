"""The gate as JUnit XML, which every build server shows: one test case for each sample."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from unsum.audit.figures import percent
from unsum.audit.gate import Gate, sentence
from unsum.audit.plain import one_line
from unsum.audit.result import Audit


def render_junit(audit: Audit, gate: Gate) -> str:
    """The complete file. ElementTree escapes what XML can hold; what it cannot hold is replaced before."""
    counts = {
        "tests": str(len(gate.rows)),
        "failures": str(gate.count("above")),
        "errors": str(gate.count("unknown")),
        "time": f"{audit.seconds:.3f}",
    }
    root = Element("testsuites", {"name": "unsum audit"} | counts)
    name = f"unsum audit of {one_line(audit.setting.model)}"
    suite = SubElement(root, "testsuite", {"name": name, "skipped": "0"} | counts)
    properties = SubElement(suite, "properties")
    for name, value in _properties(audit, gate).items():
        SubElement(properties, "property", name=one_line(name), value=one_line(value))
    for number, row in enumerate(gate.rows, start=1):
        # Numbered, because build servers take cases of one name for one case and titles may repeat.
        case = SubElement(suite, "testcase", classname="unsum.audit", name=f"{number}. {row.title}", time="0")
        outcome = gate.outcome(row)
        if outcome == "above":
            message = f"leakage {percent(row.leakage)} is above {percent(gate.level)}"
            SubElement(case, "failure", type="leakage", message=message).text = sentence(row)
        elif outcome == "unknown":
            message = "leakage is not known: the truth is missing and the attack does not vouch for its answer"
            SubElement(case, "error", type="unknown", message=message).text = sentence(row)
        else:
            SubElement(case, "system-out").text = sentence(row)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _properties(audit: Audit, gate: Gate) -> dict[str, str]:
    setting = audit.setting
    return {
        "gate": gate.reason,
        "verdict": audit.verdict.headline,
        "model": setting.model,
        "defenses": setting.defenses,
        "attack": setting.attack,
        "seed": str(setting.seed),
        "command": setting.command,
        **{f"version of {name}": version for name, version in setting.versions.items()},
    }
