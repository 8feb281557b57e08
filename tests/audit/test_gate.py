"""The gate: the same leakage as everywhere, what is above it, and what nobody knows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from support.audits import bounded, captured, synthetic
from support.audits import shares as own
from unsum import UnsumError
from unsum.audit.gate import Gate, check_gate
from unsum.audit.gate_files import render_junit, render_sarif, sentence
from unsum.audit.leakage import Shares, vouched
from unsum.audit.report import Audit
from unsum.audit.result import SampleRow
from unsum.score.labels import LabelsRead


def leaking(*shares: float) -> Audit:
    return replace(synthetic(), shares=own(*shares))


@pytest.mark.parametrize(
    ("shares", "level", "result", "code"),
    [
        ((0.1, 0.2, 0.3), 0.3, "passed", 0),  # at the level is not above it
        ((0.1, 0.2, 0.3), 0.29, "failed", 1),
        ((1.0, 1.0, 1.0), 0.99, "failed", 1),
        ((0.0, 0.0, 0.0), 0.0, "passed", 0),
        ((0.0, 0.0, 1e-9), 0.0, "failed", 1),
        ((0.1, math.nan, 0.1), 0.2, "undecided", 2),
        ((0.9, math.nan, 0.1), 0.2, "failed", 1),  # what is known to leak is enough
    ],
)
def test_any_sample_above_the_level_fails(
    shares: tuple[float, ...], level: float, result: str, code: int
) -> None:
    held = leaking(*shares).gate(level)
    assert (held.result, held.exit_code) == (result, code)


def test_a_gate_before_which_nobody_stands_is_not_passed() -> None:
    held = Gate(0.2, [])
    assert (held.result, held.exit_code) == ("undecided", 2)
    assert held.reason.startswith("Gate undecided")


def test_the_reason_names_the_worst() -> None:
    held = leaking(0.25, 0.9, 0.1).gate(0.2)
    assert held.reason == (
        "Gate failed: 2 of 3 samples leak more than 20 % (most: “two boats” with 90 % of the "
        "picture)."
    )
    assert leaking(0.25, 0.1, 0.1).gate(0.2).reason.startswith("Gate failed: 1 of 3 samples leaks")
    assert (
        leaking(0.25, 0.9, 0.1).gate(0.9).reason
        == "Gate passed: none of 3 samples leaks more than 90 % (most: 90 % of the picture)."
    )
    assert held.to_dict() == {
        "level": 0.2,
        "result": "failed",
        "above": 2,
        "reason": held.reason,
    } | {
        "prove_below": None,
        "over_ceiling": None,
        "proven": False,
        "fail_on_labels": False,
        "besides": [],
    }


@pytest.mark.parametrize("level", [-0.1, 1.0, 20.0, math.nan])
def test_a_level_that_says_nothing_is_refused(level: float) -> None:
    with pytest.raises(UnsumError, match="from 0 to below 1"):
        synthetic().gate(level)


def test_a_sweep_has_no_gate_and_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UnsumError, match="--junit belongs to a single audit"):
        check_gate(None, tmp_path / "x.xml", None, sweeping=True)
    with pytest.raises(UnsumError, match="is a folder"):
        check_gate(None, None, tmp_path, sweeping=False)
    check_gate(None, None, None, sweeping=True)


def test_every_row_has_its_own_samples_leakage() -> None:
    """The attack answers in an order of its own: 1 of the second sample must not come to stand
    beside the first."""
    audit = synthetic(found=2)
    rows = [(row.title, row.found_label is not None, row.leakage) for row in audit.rows]
    assert [(title, found) for title, found, _ in rows] == [
        ("a lighthouse", True),
        ("two boats", True),
        ("fog & rain", False),
    ]
    # the last one was not found
    assert [leakage for *_, leakage in rows] == pytest.approx([1, 1, 0], abs=1e-9)
    assert [row.leakage for row in leaking(0.25, 0.9, 0.125).rows] == [0.25, 0.9, 0.125]


class TestWithoutTruth:
    def test_a_certificate_is_enough_to_fail(self) -> None:
        held = captured().gate(0.2)
        assert held.result == "failed"
        assert [row.leakage for row in held.rows] == pytest.approx([1 - 1e-6] * 3)
        assert "by the attack's own certificate" in sentence(held.rows[0])

    def test_no_certificate_decides_nothing(self) -> None:
        held = captured(exact=False).gate(0.2)
        assert held.exit_code == 2
        assert "3 of 3 samples is not known" in held.reason
        assert "how much of it leaked is not known" in sentence(held.rows[0])

    def test_a_certified_input_is_the_sample_itself(self) -> None:
        leak = replace(captured(exact=False).leak, inputs_exact=torch.tensor([True, False, False]))
        assert (vouched(leak, 0).sample, vouched(leak, 0).read) == (1, "sample")
        assert math.isnan(vouched(leak, 1).most)
        audit = replace(captured(exact=False), leak=leak)
        assert audit.gate(0.5).count("above") == 1
        assert audit.verdict.level == "partial"
        assert audit.verdict.share == pytest.approx(1 / 3)


def test_sentences_say_what_was_found() -> None:
    first, _, missing = synthetic(found=2).rows
    assert sentence(first) == (
        "a lighthouse: 100 % of its features and 0 % of the picture leaked; found label “harbour” "
        "(right)."
    )
    assert sentence(missing) == "fog & rain: 0 % of the picture leaked; it was not found."


def test_a_gate_that_passes_says_that_the_labels_are_read() -> None:
    """The level is about samples; a pass is no word on labels."""
    eye = torch.eye(100)
    rows = [
        SampleRow(f"photo {i}", "a", "a", Shares(sample=0.1), None, None, None) for i in range(8)
    ]
    passed = Gate(0.2, rows, labels=LabelsRead.of(eye[:7], eye[:8], "labels by bias-sign"))
    assert passed.exit_code == 0
    assert passed.reason.endswith(
        "of the sample), but the labels are given away: 7 of 8 were read."
    )
    assert Gate(0.2, rows, labels=LabelsRead.of(eye[20:28], eye[:8])).reason.endswith(
        "(most: 10 % of the sample)."
    )


def _labels_read(**how: Any) -> Gate:
    """Seven of eight labels read, and every sample at 10 %."""
    eye = torch.eye(100)
    rows = [
        SampleRow(f"photo {i}", "a", "a", Shares(sample=0.1), None, None, None) for i in range(8)
    ]
    return Gate(0.2, rows, labels=LabelsRead.of(eye[:7], eye[:8], "labels by bias-sign"), **how)


def test_labels_that_were_read_fail_where_that_is_asked_for() -> None:
    held = _labels_read(fail_on_labels=True)
    assert (held.result, held.exit_code, held.unproven) == ("failed", 1, False)
    assert held.reason == (
        "Gate failed: the labels are given away: 7 of 8 were read, though none of 8 samples leaks "
        "more than 20 %."
    )
    assert held.to_dict()["besides"] == ["the labels are given away: 7 of 8 were read"]
    assert held.to_dict()["fail_on_labels"] is True


def test_a_gate_on_labels_passes_without_any_and_decides_nothing_of_samples() -> None:
    rows = _labels_read().rows
    assert Gate(0.2, rows, fail_on_labels=True).exit_code == 0
    unknown = [replace(rows[0], shares=Shares())]
    assert Gate(0.2, unknown, fail_on_labels=True).exit_code == 2
    held = Gate(
        0.2,
        unknown,
        fail_on_labels=True,
        headline="This update gives away the words of the texts, in no order.",
    )
    assert held.exit_code == 1  # what is known to leak is enough
    assert held.reason == "Gate failed: this update gives away the words of the texts, in no order."


def test_samples_and_labels_fail_in_one_sentence() -> None:
    held = _labels_read(fail_on_labels=True)
    worse = replace(held, rows=[replace(held.rows[0], shares=Shares(sample=0.5)), *held.rows[1:]])
    assert worse.reason == (
        "Gate failed: 1 of 8 samples leaks more than 20 % (most: “photo 0” with 50 % of the "
        "sample), and the labels are given away: 7 of 8 were read."
    )


def test_a_proof_about_samples_is_none_about_labels() -> None:
    """Every ceiling is 5 %, and a label is told from another one with certainty."""
    proven = replace(bounded(*[0.05] * 8), labels=torch.ones(8))
    held = _labels_read(bound=proven, prove_below=0.2)
    assert held.exit_code == 0
    assert held.reason.endswith(", but the labels are given away: 7 of 8 were read.")
    assert replace(held, fail_on_labels=True).exit_code == 1
    # right by luck
    hidden = replace(
        held,
        bound=replace(proven, labels=torch.full((8,), 0.55), any_label=torch.full((8,), 0.56)),
        fail_on_labels=True,
    )
    assert (hidden.exit_code, hidden.besides) == (0, [])


def test_build_servers_see_a_gate_on_labels() -> None:
    audit = leaking(0.1, 0.1, 0.1)
    held = replace(audit.gate(0.2, fail_on_labels=True), labels=_labels_read().labels)
    suite = ElementTree.fromstring(render_junit(audit, held))[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "1")
    assert suite[-1].find("failure").text == ("the labels are given away: 7 of 8 were read")  # type: ignore[union-attr]
    run = json.loads(render_sarif(audit, held))["runs"][0]
    assert {one["level"] for one in run["results"]} == {"error"}
    assert run["invocations"][0]["exitCode"] == 1
    passed = replace(held, fail_on_labels=False)
    assert {
        one["level"] for one in json.loads(render_sarif(audit, passed))["runs"][0]["results"]
    } == {"note"}
    assert ElementTree.fromstring(render_junit(audit, passed))[0].get("tests") == "3"
