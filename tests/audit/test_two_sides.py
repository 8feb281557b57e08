"""Found and ceiling: four states, the gate on the proof, and what is said where found lies above
its ceiling."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import unsum
from support.audits import bounded, captured, shares, synthetic
from support.material import pictures, small_net
from unsum.audit import ceiling_words
from unsum.audit.advice import advice
from unsum.audit.bounds import proven_chain
from unsum.audit.compare import Comparison
from unsum.audit.gate import render_junit
from unsum.audit.report import Audit, render, render_markdown, unpictured
from unsum.audit.sweep.bench import Point, SampleLeak
from unsum.audit.sweep.report import Sweep
from unsum.audit.sweep.result import Curve, sentences
from unsum.audit.text_verdict import Texts
from unsum.ceiling.worst_case import worst_case
from unsum.leak import Attempt, Leak
from unsum.score.labels import LabelsRead
from unsum.score.occurred import RowsNamed

NAN = math.nan


def audited(
    found: tuple[float, ...], limits: tuple[float, ...], *, label: float = 0.0, undecided: str = ""
) -> Audit:
    audit = synthetic()
    rows = [replace(row, feature_error=0.9, label_correct=label) for row in audit.samples]
    bound = bounded(*limits) if limits else None
    return replace(audit, samples=rows, shares=shares(*found), bound=bound, undecided=undecided)


@pytest.mark.parametrize(
    ("found", "limits", "label", "undecided", "state"),
    [
        ((0.25, 0.1, 0.0), (0.3, 0.19, 0.1), 0.0, "", "leaks"),
        ((0.1, 0.1, 0.1), (0.19, 0.19, 0.19), 0.0, "", "protected"),
        ((0.1, 0.1, 0.1), (0.19, 0.2, 0.19), 0.0, "", "unproven"),  # at the level is not below it
        ((0.1, 0.1, 0.1), (), 0.0, "", "unproven"),
        ((NAN, NAN, NAN), (0.9, 0.9, 0.9), 0.0, "no attack applies", "not decidable"),
        # a proof needs no attack
        ((NAN, NAN, NAN), (0.1, 0.1, 0.1), 0.0, "no attack applies", "protected"),
        ((0.1, 0.1, 0.1), (0.1, 0.1, 0.1), 1.0, "", "leaks"),  # its labels
    ],
)
def test_two_figures_and_one_level_decide(
    found: tuple[float, ...], limits: tuple[float, ...], label: float, undecided: str, state: str
) -> None:
    assert audited(found, limits, label=label, undecided=undecided).verdict.state == state


@pytest.mark.parametrize(
    ("limits", "undecided", "state"),
    [
        ((0.9, 0.9), "", "unproven"),
        ((0.1, 0.1), "", "protected"),
        ((), "", "not decidable"),
        ((0.9, 0.9), "the update lacks the last layer", "not decidable"),  # no attack applies
    ],
)
def test_texts_of_which_nothing_was_read_are_unproven(
    limits: tuple[float, ...], undecided: str, state: str
) -> None:
    targets = torch.zeros(0, 8)
    tried = [Attempt("text", refused=undecided)] if undecided else []
    notes = ["No prefix fits the gradient: noise."]
    leak = Leak("text", targets, targets, torch.zeros(0, 4), 1.0, NAN, False, tried=tried)
    leak = replace(leak, notes=notes)
    bound = replace(bounded(*limits), unit="text") if limits else None
    verdict = Texts(["one", "two"], []).judge(leak, shares(NAN, NAN), bound=bound)
    assert verdict.state == state
    if state == "unproven":
        assert verdict.headline.startswith("No attack tried reads a text out of this update; noth")
        assert verdict.details[0] == (
            "The attack on text did not get through: no prefix fits the gradient: noise."
        )


@pytest.mark.parametrize(
    ("labels", "any_label", "told"),
    [
        ((0.55, 0.994, 0.6), None, "99 %"),
        ((0.55, 0.59, 0.51), (0.55, 0.7, 0.55), "70 %"),
        ((0.55, 0.59, 0.51), (0.55, 0.59, 0.55), ""),
        ((NAN, NAN, NAN), None, ""),
    ],
)
def test_protected_samples_say_whether_their_labels_are(
    labels: tuple[float, ...], any_label: tuple[float, ...] | None, told: str
) -> None:
    """Chances of 0.6 and less are hidden: a fifth of what a guess leaves open."""
    audit = audited((0.1, 0.1, 0.1), (0.15, 0.15, 0.15))
    assert audit.bound is not None
    any_label_ = None if any_label is None else torch.tensor(any_label)
    bound = replace(audit.bound, labels=torch.tensor(labels), any_label=any_label_)
    verdict = replace(audit, bound=bound).verdict
    assert verdict.state == "protected"
    said = "its labels are not proven to be hidden." in verdict.headline
    assert said == bool(told)
    sentence = "The ceiling of the samples says nothing of their labels: one can be told from"
    last = f"{sentence} another with a chance of up to {told}."
    assert (verdict.details[-1] == last) == said


def test_the_gate_on_found_says_what_it_does_not_show() -> None:
    unproven = audited((0.1, 0.1, 0.1), (0.5, 0.85, 0.3))
    assert unproven.gate(0.2).exit_code == 0
    assert unproven.gate(0.2).reason.endswith(
        "Nothing proves that other attacks do not: the ceiling is 85 %."
    )
    assert "ceiling" not in audited((0.1, 0.1, 0.1), (0.1, 0.15, 0.1)).gate(0.2).reason


@pytest.mark.parametrize(
    ("limits", "failures"), [((0.19, 0.1, 0.1), 0), ((0.3, 0.1, 0.1), 1), ((), 1)]
)
def test_junit_fails_where_the_proof_does(limits: tuple[float, ...], failures: int) -> None:
    audit = audited((0.1, 0.1, 0.1), limits)
    root = ElementTree.fromstring(render_junit(audit, audit.gate(0.2, prove_below=0.2)))
    assert root.attrib["tests"] == "4"
    assert (root.attrib["failures"], len(root.findall(".//failure"))) == (str(failures), failures)
    assert root.find(".//testcase[@name='ceiling']") is not None
    without = ElementTree.fromstring(render_junit(audit, audit.gate(0.2)))
    assert (without.attrib["tests"], without.find(".//testcase[@name='ceiling']")) == ("3", None)


@pytest.mark.parametrize(
    ("limits", "below", "code"),
    [
        ((0.19, 0.1, 0.1), 0.2, 0),
        ((0.19, 0.1, 0.1), 0.19, 1),
        ((0.3, 0.1, 0.1), 0.2, 1),
        ((), 0.2, 2),
    ],
)
def test_the_gate_on_the_proof(limits: tuple[float, ...], below: float, code: int) -> None:
    gate = audited((0.1, 0.1, 0.1), limits).gate(0.2, prove_below=below)
    assert gate.exit_code == code
    assert gate.to_dict()["proven"] == (code == 0)


def test_a_sample_that_leaks_fails_whatever_is_proven_of_others() -> None:
    assert audited((0.3, 0.1, 0.1), (0.1, 0.1, 0.1)).gate(0.2, prove_below=0.2).exit_code == 1


def test_found_above_its_ceiling_is_said_in_red(tmp_path: Path) -> None:
    """One of the two is wrong; a figure of features is not held against a ceiling of pictures."""
    audit = audited((0.6, 0.1, 0.1), (0.3, 0.3, 0.3))
    assert audit.verdict.alarm.startswith(
        "Found above its ceiling: 60 % of a picture was found, and at most 30 %"
    )
    page = render(audit)
    assert '<p class="alarm" role="alert">Found above its ceiling' in page
    assert audit.verdict.alarm in str(audit)
    assert (
        f'<div class="unsum-alarm" role="alert">{audit.verdict.alarm}</div>' in audit._repr_html_()
    )
    assert 'unsum-alarm" role' not in audited((0.1, 0.1, 0.1), (0.3, 0.3, 0.3))._repr_html_()
    audit.write(tmp_path / "report")
    assert (
        json.loads((tmp_path / "report" / "result.json").read_text())["verdict"]["alarm"]
        == audit.verdict.alarm
    )
    features = [replace(share, features=share.sample, sample=NAN) for share in audit.shares]
    assert replace(audit, shares=features).verdict.alarm == ""
    # within the scatter of one sample
    assert audited((0.32, 0.1, 0.1), (0.3, 0.3, 0.3)).verdict.alarm == ""


def test_every_sample_has_both_ends_in_the_report() -> None:
    page = render(audited((0.1, 0.12, 0.0), (0.5, 0.85, 0.3)))
    for found, limit in (("10", "50"), ("12", "85"), ("0", "30")):
        said = f'aria-label="found {found}\N{NO-BREAK SPACE}%, ceiling {limit}\N{NO-BREAK SPACE}%"'
        assert page.count(said) == 2  # beside the picture and in the table
    assert "–" in render(captured())


def test_the_report_says_what_the_ceiling_rests_on() -> None:
    """Where no pair of worlds was played, none is counted; where the time was over, nothing is
    called proven."""
    shown = audited((0.1, 0.1, 0.1), (0.1, 0.1, 0.1))
    page, text = render(shown), render_markdown(shown)
    assert f"pairs of worlds under {shown.bound.noise}; all limits hold together" in page.replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert "## What nobody can exceed" in text
    none = replace(shown.bound, pairs=0)
    assert any("No pair of worlds had to be played" in said for said in ceiling_words.details(none))
    late = replace(shown.bound, samples=torch.tensor([0.1, 0.6, 0.1]), lower=torch.zeros(3))
    assert ceiling_words.beside(late).startswith(
        "Whether the ceiling protects is not decided: from "
    )
    assert "may be 60 %" in ceiling_words.beside(late)
    same = replace(shown.bound, samples=torch.tensor([0.5] * 3), lower=torch.tensor([0.5] * 3))
    assert "that of one picture is 50 %, from" in ceiling_words.beside(same)


def test_pictures_that_came_back_and_are_not_drawn_are_not_called_missing() -> None:
    audit = synthetic(pictures=False)
    assert "makes no pictures" in unpictured(replace(audit, shares=shares(0.1, 0.1, 0.1)))
    assert unpictured(replace(audit, shares=shares(1.0, 0.1, 0.1))).startswith(
        "Pictures came back pixel by pixel;"
    )


def test_labels_without_a_proof_do_not_hide_the_rest() -> None:
    """That no attack read the samples is said as such; only a ceiling shows that they stay
    hidden."""
    open_still = audited((0.1, 0.1, 0.1), (0.5, 0.85, 0.3), label=1.0).verdict.headline
    assert (
        open_still
        == "This update gives away what the samples are; no attack tried reads how they look."
    )
    hidden = audited((0.1, 0.1, 0.1), (0.1, 0.1, 0.1), label=1.0).verdict.headline
    assert hidden == "This update gives away what the samples are, but not how they look."


def test_an_update_that_was_captured_has_no_ceiling() -> None:
    audit = unsum.audit(
        small_net(), update=unsum.capture(small_net(), pictures(2), torch.tensor([3, 7]))
    )
    assert audit.bound is None
    assert "needs the client's samples" in audit.unbounded
    assert audit.gate(0.9, prove_below=0.2).exit_code in (1, 2)
    assert audit.to_dict()["ceiling"] is None


def test_an_audit_under_much_noise_is_proven_and_under_little_is_not() -> None:
    data = pictures(2), torch.tensor([3, 7])
    strong = unsum.audit(small_net(), data, defenses=unsum.Noise(100.0))
    assert strong.verdict.state == "protected"
    assert max(strong.ceilings) < 0.2
    assert strong.gate(0.2, prove_below=0.2).exit_code == 0
    weak = unsum.audit(small_net(), data, defenses=unsum.Noise(1e-6))
    assert min(weak.ceilings) > 0.9
    assert weak.verdict.state != "protected"


def test_the_clip_with_noise_that_a_comparison_adds_proves_it_for_any_data() -> None:
    for norm in (1e-3, 0.77, 42.0):
        clip, noise = proven_chain(norm)
        assert clip.strength == pytest.approx(norm, rel=0.5)
        known = worst_case([clip, noise], 8)
        assert known is not None
        assert 0.1 < known.leakage < 0.2


def test_a_ceiling_can_be_left_out() -> None:
    audit = unsum.audit(small_net(), (pictures(2), torch.tensor([3, 7])), ceiling=False)
    assert audit.bound is None
    assert audit.unbounded
    assert all(map(math.isnan, audit.ceilings))


def test_the_leakage_of_texts_that_ended_the_attack_is_unknown_in_words_and_figures() -> None:
    """What the gate leaves undecided, the page does not show as 0 %."""
    targets = torch.zeros(0, 8)
    leak = Leak("text", targets, targets, torch.zeros(0, 4), 1.0, NAN, False)
    leak = replace(leak, notes=["Every gradient is of full rank."])
    texts = Texts(["one", "two"], [])
    unread = shares(NAN, NAN)
    high, low = (replace(bounded(*limits), unit="text") for limits in ((0.9, 0.9), (0.1, 0.1)))
    unproven = texts.judge(leak, unread, bound=high)
    assert unproven.state == "unproven"
    assert math.isnan(unproven.share)
    proven = texts.judge(leak, unread, bound=low)
    assert proven.share == 0
    for verdict in (unproven, proven):
        assert not any(sentence.startswith("–") for sentence in verdict.details)
        assert sum("certificate" in sentence for sentence in verdict.details) == 1
    named = texts.judge(leak, unread, [RowsNamed("wte", 150, 3, 3, 3)], bound=high)
    assert named.state == "leaks"
    assert named.details[-1].startswith("The ceiling does not protect: that of one text")


def test_no_pair_of_worlds_is_no_measurement() -> None:
    none = replace(bounded(1.0, 1.0), pairs=0, lower=torch.zeros(2))
    assert ceiling_words.beside(none) == (
        "Whether the ceiling protects is not decided: time was over before a single pair of worlds "
        "had been played."
    )


def test_features_that_were_read_undo_no_proof_and_are_not_called_proven() -> None:
    """A ceiling is of samples: beside features that leak, a row says leaks and nothing else."""
    rows = [SampleLeak("a", 0.5, True, 0.1, 0.9, 9.0)]
    read = Point("Noise(9)", 9.0, rows, ceiling=0.1, ceiling_mean=0.1)
    assert read.verdict(0.2) == "leaks"
    assert not read.proven(0.2)
    answer = Comparison([replace(read, defenses="none", ceiling=1.0), read]).answer
    assert "Proven" not in answer
    assert replace(read, samples=[replace(rows[0], leakage=0.1)]).proven(0.2)


def test_labels_that_were_read_stand_in_the_headline_of_samples_that_leak_in_part() -> None:
    eye = torch.eye(4)
    labels = LabelsRead.of(eye[:3], eye[:3], "labels by bias-sign")
    audit = replace(audited((0.5, 0.1, 0.1), (1.0, 1.0, 1.0)), labels=labels)
    assert audit.verdict.headline.endswith("a part of 1 of its 3 pictures, and 3 of 3 labels.")
    assert audited((0.5, 0.1, 0.1), (1.0, 1.0, 1.0)).verdict.headline.endswith("3 pictures.")


def test_a_ceiling_that_was_exceeded_proves_nothing() -> None:
    """Found 16 % above a ceiling of 5 %: both are below the level, and nothing is green."""
    audit = audited((0.16, 0.0, 0.0), (0.05, 0.05, 0.05))
    assert audit.verdict.alarm.startswith("Found above its ceiling: 16 % of a picture was found")
    assert audit.verdict.state == "unproven"
    assert advice(audit)[0].text.startswith("Rely on neither figure")
    gate = audit.gate(0.2, prove_below=0.2)
    assert gate.exit_code == 1
    assert gate.reason.startswith("Gate failed: found above its ceiling: 16 % of a picture")
    assert gate.over == [0]
    assert audit.gate(0.2).reason.endswith("with the command and the seed.")
    within = audited((0.09, 0.0, 0.0), (0.05, 0.05, 0.05))  # one sample scatters about a mean
    assert within.verdict.state == "protected"
    assert within.gate(0.2, prove_below=0.2).exit_code == 0
    assert not advice(within)[0].text.startswith("Rely")


def test_a_sample_of_which_nobody_knows_is_not_said_to_leak() -> None:
    rows = [SampleLeak(str(i), leak, False, 1.0, 0.0, NAN) for i, leak in enumerate((0.6, NAN))]
    sweep = Sweep(
        synthetic().setting,
        0.2,
        [Point("none", None, rows)],
        [Curve("sign", None, [Point("Sign()", None, rows)])],
        None,
        [],
        ["a", "b"],
        1.0,
    )
    told = "1 of 2 samples leaks 20 % or more, and of 1 nobody knows"
    assert sentences(sweep) == [f"Without any defense, {told}.", f"Sign is not enough: {told}."]


def test_the_reason_of_an_undecided_gate_ends_in_one_full_stop() -> None:
    open_still = audited((NAN, NAN, NAN), (), undecided="the update lacks the last layer.")
    reason = open_still.gate(0.2).reason
    assert reason.endswith("3 of 3 samples is not known: the update lacks the last layer.")
