"""`unsum audit --fail-above` as a build runs it: exit codes, the last line, and the files for build
servers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from unsum.commands import main as cli

DOCS = Path(__file__).parents[2] / "docs"


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Build:
    """Runs `unsum …` in an empty folder."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capture = patch, capture

    def __call__(self, *arguments: str) -> Result:
        self._patch.setattr(sys, "argv", ["unsum", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = self._capture.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)


@pytest.fixture
def build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Build:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Build(monkeypatch, capsys)


QUICK = ("audit", "--batch", "2", "--attack", "fgla")


def test_a_leak_fails_the_build_and_the_last_line_says_why(build: Build) -> None:
    result = build(
        *QUICK, "--fail-above", "0.2", "--junit", "ci/leaks.xml", "--sarif", "ci/leaks.sarif"
    )
    assert result.code == 1
    last = result.out.strip().splitlines()[-1]
    assert re.fullmatch(
        r"Gate failed: 2 of 2 samples leak more than 20 % \(most: “.+” with 100 % of .+\)\.", last
    )
    root = ElementTree.parse("ci/leaks.xml").getroot()
    assert [root.get(name) for name in ("tests", "failures", "errors")] == ["2", "2", "0"]
    run = json.loads(Path("ci/leaks.sarif").read_text("utf-8"))["runs"][0]
    assert [finding["ruleId"] for finding in run["results"]] == ["sample-leakage"] * 2
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert Path(place).is_file()  # the report
    samples = json.loads(Path("unsum-report/result.json").read_text("utf-8"))["samples"]
    assert [finding["properties"]["leakage"] for finding in run["results"]] == [
        row["leakage"] for row in samples
    ]


@pytest.mark.long
def test_enough_noise_passes_and_json_stays_json(build: Build) -> None:
    result = build(
        *QUICK, "--defense", "noise:0.1", "--fail-above", "0.2", "--json", "--junit", "leaks.xml"
    )
    assert result.code == 0
    content = json.loads(result.out)  # nothing but JSON on stdout
    assert content["gate"]["result"] == "passed"
    assert content["gate"]["reason"] in result.err
    assert ElementTree.parse("leaks.xml").getroot().get("failures") == "0"


def test_without_a_level_the_files_are_written_and_nothing_fails(build: Build) -> None:
    result = build(*QUICK, "--junit", "leaks.xml")
    assert result.code == 0
    assert "Gate" not in result.out
    assert ElementTree.parse("leaks.xml").getroot().get("failures") == "2"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--fail-above", "20"), "from 0 to below 1, not 20"),
        (("--fail-above", "0.2", "--sweep", "sign"), "--fail-above belongs to a single audit"),
        (("--junit", "."), "is a folder"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    build: Build, arguments: tuple[str, ...], sentence: str
) -> None:
    result = build("audit", *arguments)
    assert result.code == 2
    assert sentence in result.err
    assert "Loading the model" not in result.err
    assert list(Path().iterdir()) == []


def test_the_options_of_the_examples_exist(build: Build) -> None:
    texts = [(DOCS / name).read_text("utf-8") for name in ("ci/github-action.yml", "ci.md")]
    commands = [
        line
        for text in texts
        for line in text.splitlines()
        if "unsum audit" in line or "--junit" in line
    ]
    options = set(re.findall(r"--[a-z-]+", " ".join(commands)))
    assert {"--fail-above", "--junit", "--sarif", "--model", "--out", "--force"} <= options
    helped = build("audit", "--help").out
    assert [option for option in sorted(options) if option not in helped] == []
