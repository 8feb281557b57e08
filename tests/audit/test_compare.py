"""The same round under other defenses, and what a client trained on that mixed its samples."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import unsum
from support.audits import captured, synthetic
from support.material import pictures, small_net
from unsum.audit import compare
from unsum.audit.compare import CAPTURED, NOT_ASKED, SLOW, Comparison, keeps_everything
from unsum.audit.report import render, render_markdown
from unsum.audit.sweep import task
from unsum.audit.sweep.bench import Point, SampleLeak
from unsum.audit.sweep.result import Curve
from unsum.client.capture import capture_trained
from unsum.client.step import first_step
from unsum.commands.audit_tables import show
from unsum.score.labels import LabelsRead

pytestmark = pytest.mark.usefixtures("short_matching")
DATA = pictures(4), torch.tensor([3, 3, 11, 30])


@pytest.fixture(scope="module", autouse=True)
def _short_training() -> Iterator[None]:
    """What a defense costs is of no importance here; that it is said, is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "ROUNDS", 3)
        patch.setattr(task, "RUNS", 1)
        yield


@pytest.fixture(scope="module")
def compared() -> unsum.Audit:
    return unsum.audit(small_net(), DATA, compare=True)


def test_each_standard_defense_is_tried_alone(compared: unsum.Audit) -> None:
    comparison = compared.comparison
    labels = [comparison.label(i) for i in range(len(comparison.points))]
    assert labels[:4] == ["no defense", "Clip(1)", "Prune(0.9)", "Sign()"]
    none, clip, prune, sign = comparison.points[:4]
    assert [row.leakage for row in none.samples] == compared.leakages
    assert clip.worst == pytest.approx(1)  # clipping hides nothing from this attack
    assert sign.mean < 0.9 * none.mean
    alone = unsum.audit(small_net(), DATA, defenses=unsum.Prune(0.9))
    assert [row.leakage for row in prune.samples] == alone.leakages
    proof = comparison.points[-1]  # there is always one, also where an unproven one leaks nothing
    assert proof.verdict(0.2) == "protected"
    assert [point.proven(0.2) for point in comparison.points].count(True) == 1


@pytest.mark.long
def test_the_audited_defense_stands_beside_none_and_is_not_tried_twice() -> None:
    comparison = unsum.audit(small_net(), DATA, defenses=[unsum.Clip(1)], compare=True).comparison
    labels = [comparison.label(i) for i in range(len(comparison.points))]
    assert labels[:4] == ["no defense", "Clip(1) (audited)", "Prune(0.9)", "Sign()"]


@pytest.mark.long
def test_noise_climbs_until_every_sample_is_under_the_level_and_that_has_its_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # signs alone keep these under the level
    monkeypatch.setattr(compare, "STANDARD", ("clip:1", "prune:0.9"))
    comparison = unsum.audit(small_net(), DATA, compare=True).comparison
    *others, last, proof = comparison.points
    assert [point.under(0.2) for point in others] == [False] * len(others)
    assert last.under(0.2)
    assert last.defenses.startswith("Noise(")
    assert not last.proven(0.2)  # what the attacks do not read, others may
    assert [point.ceiling for point in others] == [1.0] * len(others)
    assert proof.defenses.startswith("Clip(")
    assert proof.proven(0.2)
    size = float(unsum.capture(small_net(), *DATA).gradients["5.weight"].square().mean().sqrt())
    # ten times the last layer's gradient, in one digit
    assert last.strength == pytest.approx(10 * size, rel=0.34)
    priced = [point.defenses for point in comparison.points if point.accuracy]
    assert priced == ["none", last.defenses, proof.defenses]
    assert last.untrained == ""
    assert comparison.answer.startswith(
        f"Proven: under {proof.defenses} nobody reads 20 % of any sample"
    )
    assert (
        f"Unproven: the attacks tried read less than 20 % under {last.defenses}"
        in comparison.answer
    )
    assert "small network learns to " in comparison.answer


@pytest.mark.long
def test_the_noise_that_was_audited_is_not_climbed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "STANDARD", ())
    size = float(unsum.capture(small_net(), *DATA).gradients["5.weight"].square().mean().sqrt())
    steps = [float(f"{times * size:.0e}") for times in (0.1, 10)]
    monkeypatch.setattr(compare, "LADDER", (0.1, 10.0))
    points = unsum.audit(
        small_net(), DATA, defenses=unsum.Noise(steps[0]), compare=True
    ).comparison.points
    assert [point.strength for point in points[2:3]] == [pytest.approx(steps[1])]
    assert sum(point.defenses == points[1].defenses for point in points) == 1


def test_what_cannot_be_decided_is_never_under_the_level() -> None:
    """Twelve rows before a head of ten classes: under noise nobody can tell whether one leaks."""
    torch.manual_seed(5)
    crowd = torch.randn(12, 40), torch.arange(12) % 10
    comparison = unsum.audit(torch.nn.Linear(40, 10), crowd, attack="fgla", compare=True).comparison
    *others, proof = comparison.points
    assert not any(point.under(0.2) for point in others)
    assert [point.defenses for point in comparison.points if point.accuracy] == [
        "none",
        proof.defenses,
    ]
    assert proof.proven(0.2)
    assert (
        "None of the others keeps every sample under 20 %, as far as that can be decided: "
        in comparison.answer
    )
    some = Point(
        "Noise(1)",
        1.0,
        [SampleLeak("a", 0.1, False, 1, 0, 9), SampleLeak("b", math.nan, False, 1, 0, 9)],
    )
    assert not some.under(0.2)
    assert Curve("noise", None, [some]).enough(0.5) is None


def test_the_ladder_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PATIENCE": 1e-9, "LADDER": (1e-6, 1e-5), "STANDARD": ()}.items():
        monkeypatch.setattr(sys.modules["unsum.audit.compare"], name, value)
    hurried = unsum.audit(small_net(), DATA, compare=True).comparison
    assert [point.strength for point in hurried.points] == [
        None,
        pytest.approx(4e-8, rel=0.2),
        None,
    ]
    assert hurried.stopped.startswith("; there was no time to try noise ")
    assert hurried.points[-1].proven(0.2)


def test_the_server_that_changed_the_model_reads_under_other_defenses_too() -> None:
    """Rows of an imprinted layer outlive clipping; whoever forgot the reader would call a crowd of
    samples safe."""
    torch.manual_seed(5)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(192, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )
    data = torch.rand(8, 3, 8, 8), torch.arange(8) % 4
    points = unsum.audit(
        net, data, server="imprint:bins=64", attack="fgla", compare=True
    ).comparison.points
    none, clip = points[:2]
    assert none.worst > 0.9
    assert clip.worst == pytest.approx(none.worst, abs=1e-3)


@pytest.mark.long
def test_what_cannot_be_attacked_is_said() -> None:
    comparison = unsum.audit(small_net(), DATA, attack="fgla", compare=True).comparison
    assert not any(point.refused for point in comparison.points)
    headless = small_net(bias=False)
    points = unsum.audit(headless, DATA, compare=True).comparison.points
    assert all(point.refused or len(point.samples) == 4 for point in points)


def test_the_terminal_shows_a_row_for_each(
    compared: unsum.Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    show(compared, Path("report.html"))
    _, table = capsys.readouterr().out.split("The same round under other defenses")
    for i, point in enumerate(compared.comparison.points):
        (row,) = [
            line
            for line in table.splitlines()
            if compared.comparison.label(i) in line and f"/{len(DATA[1])}" in line
        ]
        assert f"{point.labels_right}/{len(DATA[1])}" in row
    assert "Proven: under Clip" in table


def test_every_output_has_it(compared: unsum.Audit) -> None:
    page, text, content = (
        render(compared),
        render_markdown(compared),
        compared.to_dict()["comparison"],
    )
    for sentence in compared.comparison.answers:
        assert f"<li>{sentence}</li>".replace(" %", "\N{NO-BREAK SPACE}%") in page
    assert content["answer"] == compared.comparison.answer
    # beside every picture, in the table of samples, and in that of defenses
    intervals = 2 * len(DATA[1]) + len(compared.comparison.points)
    assert page.count("<svg") == 1 + 1 + 4 + intervals  # the share, the drawing and its key
    said = (
        "Largest leakage of any sample: no defense 100 % (ceiling 100 %), Clip(1) 100 % (ceiling "
        "100 %)"
    )
    assert said in page
    assert "Prune(0.9)" in page.split('id="others"')[1].split("</section>")[0]
    assert re.search(
        r"^\| Clip\W+1\W+ \| leaks \| 100 % \| 100 % \| 100 % \| 4 of 4 \|", text, re.MULTILINE
    )
    assert content["absent"] is None
    assert [point["defenses"] for point in content["points"]][:2] == ["none", "Clip(1)"]
    assert content["points"][1]["largest_leakage"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("audit", "reason"),
    [
        (lambda: synthetic(), NOT_ASKED),
        (lambda: unsum.audit(small_net(), update=unsum.capture(small_net(), *DATA)), CAPTURED),
        (lambda: unsum.audit(small_net(), DATA, attack="fgla", compare=None), SLOW),
    ],
    ids=["not asked for", "captured", "an attack of one's choice"],
)
def test_where_it_is_absent_the_reason_stands_in_its_place(audit: object, reason: str) -> None:
    result = audit()  # type: ignore[operator]
    assert result.comparison.points == []
    assert result.to_dict()["comparison"] == {"points": [], "absent": reason, "answer": None}
    assert "Not shown here." in render(result)
    assert "Not shown here." in render_markdown(result)


def test_mixed_samples_are_what_is_compared_with() -> None:
    net, (images, targets) = small_net(), DATA
    torch.manual_seed(7)
    _, mixed, rows = capture_trained(first_step(net, images, targets, True), unsum.Mixup(1.0))
    result = unsum.audit(net, DATA, defenses=unsum.Mixup(1.0), seed=7)
    assert result.truth is not None
    torch.testing.assert_close(result.truth.images, mixed)
    torch.testing.assert_close(result.truth.targets, rows)
    assert not torch.equal(mixed, images)
    # of the blends; of single samples it is far larger
    assert result.scores["worst_feature_error"] < 1e-3
    assert result.trained_on.startswith("Mixup(1) blends the client's samples")
    assert result.trained_on in render(result).replace("&#39;", "'")
    assert result.to_dict()["trained_on"] == result.trained_on


def test_smoothed_labels_change_no_sample() -> None:
    result = unsum.audit(small_net(), DATA, defenses=unsum.SmoothLabels(0.1))
    assert result.trained_on == ""
    assert result.scores["target_error"] < 1e-3  # of the smoothed targets, which were the client's
    assert captured().trained_on == ""


def test_a_batch_size_that_was_granted_is_not_doubted() -> None:
    """Clipping scales the gradient as a larger batch of which some left no trace would; whoever
    knows the size knows better."""
    net, (images, targets) = small_net(), DATA
    update = unsum.capture(net, images, targets).map(
        lambda _name, gradient: gradient * 0.8
    )  # 4/5: one of five without trace
    doubted, granted = unsum.separate(net, update), unsum.separate(net, update, batch_size=4)
    assert any("may have held 5 samples" in note for note in doubted.notes)
    assert not any("may have held" in note for note in granted.notes)
    assert granted.exact


def test_a_defense_whose_labels_are_read_does_not_keep_everything() -> None:
    eye = torch.eye(100)
    read, kept = (
        LabelsRead.of(eye[:8], eye[:8], "labels by bias-sign"),
        LabelsRead.of(eye[:8], eye[50:58]),
    )
    rows = [SampleLeak("a", 0.1, True, 1, 0, 9)]
    sign, noise = (
        Point("Sign()", None, rows, labels=read),
        Point("Noise(1)", 1.0, rows, labels=kept),
    )
    leaking = Point("none", None, [SampleLeak("a", 1.0, True, 0, 1, 40)], labels=read)
    answer = Comparison([leaking, sign, noise]).answer
    assert (
        "under Sign(), where the ceiling is not known, but 8 of 8 labels were read. What that costs"
        in answer
    )
    assert (
        "Unproven: the attacks tried read less than 20 % under Noise(1), where the ceiling"
        in answer
    )
    assert [keeps_everything(point) for point in (leaking, sign, noise)] == [False, False, True]
    assert sign.to_dict()["labels_read"] is True
