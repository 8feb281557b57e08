"""Markdown, JSON, JUnit and SARIF: complete, well-formed, and harmless whatever samples and classes
are called."""

from __future__ import annotations

import copy
import json
import math
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from jsonschema import Draft202012Validator
from rich.console import Console

import unsum
from support.audits import CLASSES, TITLES, captured, shares, synthetic, with_names
from support.material import pictures, small_net
from unsum.audit.gate_files import message_text, render_junit, render_sarif
from unsum.audit.report import Audit, render, render_markdown
from unsum.audit.result import finite
from unsum.audit.wording import markdown, one_line, plain
from unsum.commands.audit_tables import _sample_table, _setting_table

DOCS = Path(__file__).parents[2] / "docs"
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "]]></failure><failure/><!-- &amp; <![CDATA[",
    "| a | `b` **c** [d](https://example.org) ![e](f) # g ~h~ <i> $x$ @team",
    "line\nbreak\r\n\n# heading\n```\n- item",
    "bell\x07 null\x00 escape\x1b[31m delete\x7f c1\x9b",
    "lone \udcff surrogate",
    "right\u202eto left",
    "[bold red]rich[/] [/]",
    "{0} {{x}} [link](1) \\",
]


def schema() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        (files("unsum.audit") / "schema" / "result.schema.json").read_text("utf-8")
    )
    return content


def closed(part: Any) -> Any:
    """The schema with every object closed, so that a field it does not describe is an error
    here."""
    if isinstance(part, list):
        return [closed(item) for item in part]
    if not isinstance(part, dict):
        return part
    inner = {key: closed(value) for key, value in part.items()}
    if "properties" in part and isinstance(part.get("type"), (str, list)):
        inner.setdefault("additionalProperties", False)
    return inner


def complaints(content: dict[str, Any]) -> list[str]:
    """By the definition of its kind, which gives clearer words than the whole."""
    strict = closed(schema())
    narrowed = {**strict, "$ref": f"#/$defs/{content['kind']}"}
    del narrowed["oneOf"]
    assert Draft202012Validator(schema()).is_valid(content)
    return [
        f"{error.json_path}: {error.message}"
        for error in Draft202012Validator(narrowed).iter_errors(content)
    ]


class TestSchema:
    def test_it_is_a_schema_and_the_published_one_is_the_shipped_one(self) -> None:
        Draft202012Validator.check_schema(schema())
        assert json.loads((DOCS / "schema" / "result.schema.json").read_text("utf-8")) == schema()

    @pytest.mark.parametrize(
        "audit",
        [synthetic(), synthetic(found=2, pictures=False), captured(), captured(exact=False)],
    )
    def test_audits_fit_and_every_field_is_described(self, audit: Audit, tmp_path: Path) -> None:
        audit.write(tmp_path / "report")
        content = json.loads((tmp_path / "report" / "result.json").read_text("utf-8"))
        assert complaints(content) == []
        assert content["schema"] == "2.0"
        printed = content | {"report": "x", "gate": audit.gate(0.2).to_dict()}
        assert complaints(printed) == []

    def test_sweeps_fit(self, tmp_path: Path) -> None:
        data = pictures(2), torch.tensor([1, 2])
        sweep = unsum.sweep(
            small_net(),
            data,
            attacker=unsum.Attacker(attack="phong"),  # which needs the bias, and one sample
            over=["noise=1e-8", "drop-bias"],
            utility=False,
        )
        sweep.write(tmp_path / "sweep")
        content = json.loads((tmp_path / "sweep" / "sweep.json").read_text("utf-8"))
        assert complaints(content) == []
        assert content["sweeps"][1]["points"][0]["refused"]

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda content: content.pop("verdict"),
            lambda content: content["samples"][0].update(leakage=1.5),
            lambda content: content.update(schema="3.0"),
            lambda content: content["verdict"].update(level="fine"),
            lambda content: content["setting"].pop("seed"),
        ],
    )
    def test_what_is_wrong_does_not_fit(self, spoil: Any) -> None:
        content = copy.deepcopy(synthetic().to_dict())
        spoil(content)
        assert not Draft202012Validator(schema()).is_valid(content)

    def test_leakage_and_labels_are_in_the_json(self) -> None:
        first = synthetic().to_dict()["samples"][0]
        assert first["leakage"] == pytest.approx(1)
        assert (first["title"], first["label"], first["found_label"]) == (
            "a lighthouse",
            "harbour",
            "harbour",
        )
        alone = captured().to_dict()
        assert alone["truth_known"] is False
        assert alone["samples"][0] == {
            "title": "recovered sample 1",
            "label": None,
            "found_label": "weather",
            "leakage": pytest.approx(1 - 1e-6),
            "read": "features",
            "features_leakage": pytest.approx(1 - 1e-6),
            "sample_leakage": None,
            "by": None,
            "ceiling": None,
        }


class TestMarkdown:
    def test_it_says_everything(self) -> None:
        audit = synthetic()
        text = render_markdown(audit)
        assert text.startswith(f"# {audit.verdict.headline}\n\n**Leakage of features.**")
        for expected in [
            "a lighthouse",
            "fog \\& rain",
            *CLASSES[:3],
            "(pictures.png)",
            "2.5e-06",
            "unsum audit --seed 7",
        ]:
            assert expected in text
        for expected in [
            "torch 9.8.7",
            "Public photos: 12 of the neighbors.",
            "- **Leakage**: ",
            "| 100 % |",
            "Clip(4)",
        ]:
            assert expected in text

    def test_pictures_lie_beside_it(self, tmp_path: Path) -> None:
        synthetic().write(tmp_path / "report")
        text = (tmp_path / "report" / "report.md").read_text("utf-8")
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
            assert (tmp_path / "report" / picture).stat().st_size > 1000
        synthetic(pictures=False).write(tmp_path / "report", force=True)
        assert not (tmp_path / "report" / "pictures.png").exists()  # those of the audit before
        assert "pictures.png" not in (tmp_path / "report" / "report.md").read_text("utf-8")

    def test_without_truth(self) -> None:
        text = render_markdown(captured(exact=False))
        assert "**Not decidable.**" in text
        assert "| recovered sample 1 | weather | – |" in text
        assert "no proof of safety" in text

    @pytest.mark.parametrize("name", HOSTILE)
    @pytest.mark.parametrize("make", [synthetic, captured])
    def test_hostile_names_change_no_structure(self, name: str, make: Any) -> None:
        """The same lines begin the same way, tables have the same cells, and no sign of Markdown's
        is left bare."""
        audit = make()
        calm, wild = (
            render_markdown(with_names(audit, text)).encode().decode().splitlines()
            for text in ("x", name)
        )
        calm_outside, _ = _without_fence(calm)
        outside, command = _without_fence(wild)
        assert command == plain(name).splitlines()  # as it was typed
        assert [_shape(line) for line in outside] == [_shape(line) for line in calm_outside]
        bare = re.compile(r"(?<!\\)(?:<\w|<!|\[d\]|\[link|@team|https://|\[/|\*\*c)")
        assert not [line for line in outside if bare.search(line)]

    def test_openings_are_escaped_only_where_they_open(self) -> None:
        assert [markdown(text) for text in ("- a", "1. a", "1) a", "+ a", "=== a", "---")] == [
            "\\- a",
            "1\\. a",
            "1\\) a",
            "\\+ a",
            "\\=== a",
            "\\---",
        ]
        assert [markdown(text) for text in ("-0.12", "6.5e-08", "a - b", "www.example.org")] == [
            "-0.12",
            "6.5e-08",
            "a - b",
            "www\\.example.org",
        ]


def _without_fence(lines: list[str]) -> tuple[list[str], list[str]]:
    """The lines outside the one fenced block, and those inside, as Markdown tells them apart."""
    first = next(i for i, line in enumerate(lines) if line.startswith("```"))
    fence = lines[first].removesuffix("console")
    last = next(
        i
        for i, line in enumerate(lines)
        if i > first and line.strip("`") == "" and len(line) >= len(fence)
    )
    outside = lines[:first] + lines[last + 1 :]
    assert not [line for line in outside if line.startswith("```")]
    return outside, lines[first + 1 : last]


def _shape(line: str) -> tuple[str, int]:
    """How a line begins, and how many cells it has."""
    begin = re.match(r"#+ |- |\d+\. |\| |!\[|\*\*|---|", line)
    assert begin is not None
    return begin.group(), len(re.findall(r"(?<!\\)\|", line))


class TestJunit:
    def test_one_case_a_sample_and_failures_say_why(self) -> None:
        audit = replace(synthetic(), shares=shares(0.9, 0.1, math.nan))
        root = ElementTree.fromstring(render_junit(audit, audit.gate(0.2)))
        suite = root[0]
        assert (root.tag, suite.tag) == ("testsuites", "testsuite")
        for element in (root, suite):
            assert [element.get(key) for key in ("tests", "failures", "errors")] == ["3", "1", "1"]
        cases = suite.findall("testcase")
        assert [case.get("name") for case in cases] == [
            f"{i}. {title}" for i, title in enumerate(TITLES, start=1)
        ]
        failure = cases[0].find("failure")
        assert failure is not None
        assert failure.get("message") == "leakage 90 % of the picture is above 20 %"
        assert "a lighthouse: 90 %" in (failure.text or "")
        assert cases[1].find("failure") is cases[1].find("error") is None
        assert cases[2].find("error") is not None
        stated = {p.get("name"): p.get("value") for p in suite.iter("property")}
        assert stated["seed"] == "7"
        assert stated["command"] == "unsum audit --seed 7"
        assert stated["gate"] == audit.gate(0.2).reason

    @pytest.mark.parametrize("name", HOSTILE)
    def test_hostile_names_are_text(self, name: str) -> None:
        audit = with_names(synthetic(), name)
        content = render_junit(audit, audit.gate(0.2))
        root = ElementTree.fromstring(content.encode())
        assert {element.tag for element in root.iter()} == {
            "testsuites",
            "testsuite",
            "properties",
            "property",
            "testcase",
            "failure",
        }
        assert [case.get("name") for case in root.iter("testcase")] == [
            f"{i}. {one_line(name)}" for i in (1, 2, 3)
        ]


class TestSarif:
    CEILINGS, RULE = (0.25, 0.6, math.nan), "ceiling-unproven"

    def run(self, audit: Audit, level: float = 0.2, report: Path | None = None) -> dict[str, Any]:
        content = json.loads(
            render_sarif(audit, audit.gate(level), report), parse_constant=pytest.fail
        )
        assert content["version"] == "2.1.0"
        assert content["$schema"].endswith("sarif-schema-2.1.0.json")
        (run,) = content["runs"]
        driver = run["tool"]["driver"]
        assert driver["name"] == "unsum"
        ids = [rule["id"] for rule in driver["rules"]]
        assert len(set(ids)) == len(ids)
        for rule in driver["rules"]:
            assert rule["shortDescription"]["text"].endswith(".")
            assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
        for result in run["results"]:
            assert ids[result["ruleIndex"]] == result["ruleId"]
            assert result["level"] in ("none", "note", "warning", "error")
            assert result["message"]["text"]
            assert result["locations"][0]["logicalLocations"][0]["name"]
        assert run["invocations"][0]["executionSuccessful"] is True
        return dict(run)

    def test_one_result_a_finding(self) -> None:
        audit = replace(synthetic(), shares=shares(0.9, 0.1, math.nan))
        run = self.run(audit)
        found = [
            (result["ruleId"], result["level"], result["properties"]["leakage"])
            for result in run["results"]
        ]
        assert found == [
            ("sample-leakage", "error", 0.9),
            ("label-leakage", "note", 0.1),  # its label was found all the same
            ("leakage-unknown", "warning", None),
        ]
        assert run["invocations"][0]["exitCode"] == 1
        prints = [result["partialFingerprints"]["sample/v1"] for result in run["results"]]
        assert len(set(prints)) == 3
        assert prints == [
            result["partialFingerprints"]["sample/v1"] for result in self.run(audit)["results"]
        ]

    def test_a_ceiling_that_is_not_proven_is_an_error(self) -> None:
        audit = replace(synthetic(), shares=shares(0.1, 0.0, 0.1))
        rows = [
            replace(row, ceiling=value)
            for row, value in zip(audit.rows, self.CEILINGS, strict=True)
        ]
        held = replace(audit.gate(0.2, prove_below=0.3), rows=rows)
        assert (held.exit_code, held.over, held.to_dict()["over_ceiling"]) == (2, [1, 2], 2)
        content = json.loads(render_sarif(audit, held), parse_constant=pytest.fail)
        named = [one for one in content["runs"][0]["results"] if one["ruleId"] == self.RULE]
        assert [one["level"] for one in named] == ["error", "error"]
        assert [one["properties"]["ceiling"] for one in named] == [0.6, None]
        assert [one["properties"]["found"] for one in named] == [0.0, 0.1]
        texts = [one["message"]["text"] for one in named]
        assert texts[0].endswith("its ceiling is 60 %, not proven to be below 30 %.")
        assert texts[1].endswith(
            "no ceiling is known, so that nothing proves it to stay below 30 %."
        )
        asked = json.loads(render_sarif(audit, audit.gate(0.2)))["runs"][0]["results"]
        assert self.RULE not in {one["ruleId"] for one in asked}

    def test_nothing_found_is_no_result(self) -> None:
        audit = synthetic()
        rows = [replace(row, label_correct=0.0) for row in audit.samples]
        assert self.run(replace(audit, samples=rows, shares=shares(*[0.0] * 3)))["results"] == []

    def test_the_report_is_where_findings_point(self, tmp_path: Path) -> None:
        place = self.run(synthetic(), report=Path("my reports/<b>#.html"))["results"][0][
            "locations"
        ][0]
        assert (
            place["physicalLocation"]["artifactLocation"]["uri"] == "my%20reports/%3Cb%3E%23.html"
        )
        place = self.run(synthetic(), report=tmp_path / "report.html")["results"][0]["locations"][0]
        assert place["physicalLocation"]["artifactLocation"]["uri"].startswith("file:///")

    @pytest.mark.parametrize("name", HOSTILE)
    def test_hostile_names_are_text(self, name: str) -> None:
        for result in self.run(with_names(synthetic(), name))["results"]:
            text = result["message"]["text"]
            assert message_text(name) in text
            assert not re.search(r"(?<!\\)\[|[\x00-\x1f\x7f-\x9f]", text)
            assert not re.search(r"(?<!\{)\{(?:\{\{)*(?!\{)", text)  # no placeholder


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_can_be_written_and_shown(name: str, tmp_path: Path) -> None:
    for number, audit in enumerate((synthetic(), captured())):
        wild = with_names(audit, name)
        page = wild.write(tmp_path / str(number))
        assert render(wild).splitlines() == page.read_text("utf-8").splitlines()
        stored = json.loads((tmp_path / str(number) / "result.json").read_text("utf-8"))
        assert complaints(stored) == []
        found = json.loads(render_sarif(wild, wild.gate(0.2)))
        for content in (stored, found):
            json.dumps(content, ensure_ascii=False).encode()  # no lone surrogate is left
        console = Console(width=200, record=True, file=None, quiet=False)
        with console.capture() as shown:
            console.print(_sample_table(wild))
            console.print(_setting_table(wild))
        assert "\x1b" not in shown.get()
        assert "\x07" not in shown.get()


def test_what_json_cannot_hold_is_null_however_deep() -> None:
    content = {"a": [1.5, math.nan, {"b": math.inf}], "c": -math.inf, "d": 0.0, "e": True, "f": 3}
    assert finite(content) == {
        "a": [1.5, None, {"b": None}],
        "c": None,
        "d": 0.0,
        "e": True,
        "f": 3,
    }
    json.dumps(finite(content), allow_nan=False)
