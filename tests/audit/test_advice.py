"""What to do now: nothing that was done already, and commands that can be copied as they stand."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace

import pytest
import torch

import unsum
from support.audits import bounded, captured, shares, synthetic
from unsum.attack.training import ADAPTIVE
from unsum.audit.advice import Advice, advice
from unsum.audit.compare import Comparison
from unsum.audit.leakage import Tried
from unsum.audit.report import Audit, render, render_markdown
from unsum.audit.sweep.bench import Point, SampleLeak
from unsum.audit.sweep.report import advice as of_sweep
from unsum.audit.sweep.report import render as render_sweep
from unsum.audit.sweep.task import Accuracy, Task
from unsum.audit.text_verdict import Texts
from unsum.notes import Code, Note


def run_as(audit: Audit, command: str, defenses: str = "none") -> Audit:
    return replace(audit, setting=replace(audit.setting, command=command, defenses=defenses))


def commands(audit: Audit) -> list[str]:
    return [step.command for step in advice(audit) if step.command]


def test_commands_are_this_audit_and_more() -> None:
    audit = run_as(synthetic(), "unsum audit --data 'my photos' --batch 4 --out here --json")
    sweep = (
        "unsum audit --data 'my photos' --batch 4 --json --sweep noise=1e-3..10 --out unsum-sweep"
    )
    gate = "unsum audit --data 'my photos' --batch 4 --out here --json --fail-above 0.2"
    assert commands(audit) == [sweep, gate]
    assert not any("…" in command for command in commands(audit))


def test_noise_that_is_there_is_not_advised_but_more_of_it() -> None:
    audit = run_as(synthetic(), "unsum audit --defense noise:1e-3 --batch 4", "Noise(0.001)")
    told = [step.text for step in advice(audit)]
    assert (
        "Noise(0.001) is not enough here; find out how strong a defense must be, and what that "
        "costs in accuracy."
    ) in told
    assert commands(audit)[0] == "unsum audit --batch 4 --sweep noise=0.001..1 --out unsum-sweep"


def test_what_stands_beside_the_noise_stays() -> None:
    command = (
        "unsum audit --defense clip:1 --defense noise:0.5 --defense=noise:1|sign --batch 4 --force"
    )
    audit = run_as(
        synthetic(), shlex.join(shlex.split(command.replace("|", r"\|"))), "Clip(1) | Noise(0.5)"
    )
    assert (
        commands(audit)[0]
        == "unsum audit --defense clip:1 --batch 4 --sweep noise=0.5..500 --out unsum-sweep"
    )


def test_a_gate_that_is_there_is_not_advised() -> None:
    audit = run_as(synthetic(), "unsum audit --fail-above 0.2")
    assert not any("fail the build" in step.text for step in advice(audit))


def test_a_batch_size_that_was_granted_is_not_advised() -> None:
    audit = captured(exact=False)
    assert audit.verdict.level == "open"
    asked = run_as(audit, "unsum audit --update u.npz")
    assert "unsum audit --update u.npz --batch-size-known --batch N" in commands(asked)
    assert "unsum audit" in commands(asked)  # without the update: samples whose truth is known
    knowing = replace(asked, leak=replace(audit.leak, knowledge=unsum.Knowledge(batch_size=3)))
    assert not any("--batch-size-known" in command for command in commands(knowing))
    assert any(
        "the attacker knew the size of this one already" in step.text for step in advice(knowing)
    )


def test_who_had_too_little_time_is_told_to_give_more() -> None:
    cut = Note(
        "time was over; left untried: further steps of the solver, further attacks", Code.CUT_SHORT
    )
    unread = replace(synthetic(), shares=shares(math.nan, math.nan, math.nan), undecided=cut)
    assert unread.verdict.headline == "Not decidable: time was over before the attacks had ended."
    assert (
        unread.verdict.details[0] == "Left untried: further steps of the solver, further attacks."
    )
    asked = run_as(unread, "unsum audit --batch 3 --time-limit 60")
    assert "unsum audit --batch 3 --time-limit 600" in commands(asked)
    assert not any("--batch-size-known" in command for command in commands(asked))


def test_python_gets_python() -> None:
    audit = run_as(synthetic(), "")
    assert commands(audit) == [
        'unsum.sweep(model, data, over="noise=1e-3..10")',
        "report.gate(0.2).exit_code",
    ]


def test_a_defense_that_ruins_the_model_is_the_first_thing_to_say() -> None:
    rows = [SampleLeak("a", 0.1, False, 1.0, 0.0, 10.0)]
    before = Point("none", None, rows, accuracy=Accuracy(0.9, 0.88, 0.92))
    after = Point("Noise(1)", 1.0, rows, accuracy=Accuracy(0.12, 0.1, 0.14))
    audit = run_as(synthetic(), "unsum audit --defense noise:1", "Noise(1)")
    ruined = replace(
        audit, comparison=Comparison([before, after], "", audited_second=True, chance=0.1)
    )
    first = advice(ruined)[0]
    assert (
        "Noise(1) ruins the model. A small network learns to 12 % accuracy under it instead of 90 %"
        in first.text
    )
    assert "ruins the model" in render(ruined)
    kept = replace(
        ruined,
        comparison=replace(
            ruined.comparison, points=[before, replace(after, accuracy=before.accuracy)]
        ),
    )
    assert not any("ruins" in step.text for step in advice(kept))


def bound_at(*limits: float, lower: float = 0.0) -> Audit:
    audit = synthetic()
    rows = [replace(row, feature_error=0.9, label_correct=0.0) for row in audit.samples]
    bound = replace(bounded(*limits), lower=torch.full((3,), lower))
    return replace(audit, samples=rows, shares=shares(0.1, 0.1, 0.1), bound=bound)


def test_what_is_proven_gets_a_gate_on_the_proof() -> None:
    proven = run_as(bound_at(0.1, 0.1, 0.1), "unsum audit --defense noise:3", "Noise(3)")
    assert commands(proven) == ["unsum audit --defense noise:3 --prove-below 0.2"]
    assert commands(run_as(proven, "unsum audit --prove-below 0.2")) == []
    assert commands(run_as(proven, "")) == ["report.gate(0.2, prove_below=0.2).exit_code"]


def test_a_ceiling_that_is_not_decided_gets_more_time_and_one_that_is_too_high_more_noise() -> None:
    command = "unsum audit --defense noise:3 --attack exact --time-limit 5 --out here"
    late = run_as(bound_at(0.1, 0.9, 0.1), command, "Noise(3)")
    assert commands(late)[0] == "unsum ceiling --defense noise:3 --prove-below 0.2 --time-limit 600"
    high = run_as(bound_at(0.9, 0.9, 0.9, lower=0.9), command, "Noise(3)")
    assert (
        commands(high)[0]
        == "unsum audit --attack exact --time-limit 5 --sweep noise=3..3000 --out unsum-sweep"
    )


def test_ruinous_noise_is_weakened_where_it_is_proven_and_replaced_where_not() -> None:
    rows = [SampleLeak("a", 0.1, False, 1.0, 0.0, 10.0)]
    points = [
        Point("none", None, rows, accuracy=Accuracy(0.9, 0.88, 0.92)),
        Point("Noise(3)", 3.0, rows, accuracy=Accuracy(0.12, 0.1, 0.14)),
    ]
    comparison = Comparison(points, "", audited_second=True, chance=0.1)

    def first(audit: Audit) -> Advice:
        return advice(
            replace(
                run_as(audit, "unsum audit --defense noise:3", "Noise(3)"), comparison=comparison
            )
        )[0]

    assert (
        first(bound_at(0.1, 0.1, 0.1)).command
        == "unsum audit --sweep noise=0.003..3 --out unsum-sweep"
    )
    assert first(bound_at(0.9, 0.9, 0.9, lower=0.9)).command == "unsum list defenses"


@pytest.mark.parametrize("name", ["a `b` c", "<script>alert(1)</script>", "it's $HOME"])
def test_names_in_a_command_stay_inside_it(name: str) -> None:
    command = shlex.join(["unsum", "audit", "--data", name])
    audit = run_as(synthetic(), command)
    assert shlex.split(commands(audit)[1])[:4] == ["unsum", "audit", "--data", name]
    assert "<script>alert" not in render(audit)
    line = next(line for line in render_markdown(audit).splitlines() if "--fail-above" in line)
    fence = "``" if "`" in name else "`"
    assert line.endswith(fence)
    assert line.count(fence) == 2


def test_an_audit_of_ones_own_says_so_too() -> None:
    torch.manual_seed(0)
    data = torch.randn(3, 64), torch.tensor([4, 4, 1])
    report = unsum.audit(torch.nn.Linear(64, 20), data, defenses=unsum.Noise(1e-9))
    assert any("Noise(1e-09) is not enough here" in step.text for step in advice(report))
    assert 'unsum.sweep(model, data, over="noise=1e-09..1e-06")' in commands(report)


def swept(
    command: str = "unsum audit --sweep noise=1e-5,10 --keep-under 0.3 --batch 3 --no-utility",
) -> unsum.Sweep:
    torch.manual_seed(0)
    data = torch.randn(3, 64), torch.tensor([4, 4, 1])
    model = torch.nn.Linear(64, 20)
    return unsum.sweep(
        model, data, over=["noise=1e-5,10"], utility=False, keep_under=0.3, command=command
    )


def test_a_sweep_says_how_to_use_the_strength_that_is_enough() -> None:
    (step,) = of_sweep(swept())
    assert "Deploy noise of 10, which is proven" in step.text
    assert "What it costs in accuracy was not measured." in step.text
    assert (
        step.command
        == "unsum audit --batch 3 --defense noise:10 --prove-below 0.3 --out unsum-report"
    )
    assert of_sweep(swept(""))[0].command == ""


def test_a_sweep_says_that_a_defense_ruins_the_model() -> None:
    result = swept()
    learned, ruined = Accuracy(0.9, 0.88, 0.92), Accuracy(0.1, 0.1, 0.1)
    (curve,) = result.curves
    points = [replace(point, accuracy=ruined) for point in curve.points]
    task = Task("tiles", 10, 100, 100, 2, 8, 3, 1, 0.1, 1.0, 100, 100)
    references = [replace(result.undefended, accuracy=learned)]
    bad = replace(result, curves=[replace(curve, points=points)], references=references, task=task)
    told = of_sweep(bad)
    assert told[0].text.startswith("Do not deploy noise of 10: this defense ruins the model.")
    assert told[1].text.startswith("Every defense that is enough ruins the model:")
    assert "this defense ruins the model" in render_sweep(bad)


def test_a_sweep_without_an_answer_says_so() -> None:
    result = swept()
    weak = replace(result, curves=[replace(result.curves[0], points=result.curves[0].points[:1])])
    (step,) = of_sweep(weak)
    assert step.text.startswith("No strength that was tried is enough:")
    safe = replace(result, references=[result.curves[0].points[1]])
    assert "No defense was needed against the attacks tried" in of_sweep(safe)[0].text


def test_noise_on_texts_and_other_networks_is_advised_to_grow_never_to_shrink() -> None:
    """Texts and maps of numbers have no sweep: noise above their own is what proves more."""
    texts = replace(
        run_as(synthetic(), "unsum audit --model hf:lm --defense noise:1", "Noise(1)"),
        texts=Texts(["one", "two", "three"], []),
        shares=shares(math.nan, math.nan, math.nan),
        bound=bounded(0.9, 0.9, 0.9),
    )
    truth = replace(texts.truth, class_names=[]) if texts.truth is not None else None
    texts = replace(texts, truth=truth)
    assert texts.verdict.state == "unproven"
    told = "unsum audit --model hf:lm --defense clip:1 --defense noise:10 --prove-below 0.2"
    assert commands(texts)[0] == told
    leaking = replace(texts, shares=shares(1.0, 1.0, 1.0))
    assert commands(leaking)[0] == "unsum audit --model hf:lm --defense noise:10"
    network = replace(texts, texts=None)
    assert commands(network)[0] == told
    first = run_as(network, "unsum audit --model net.py:unet")
    assert "--defense clip:1 --defense noise:0.1 --prove-below" in commands(first)[0]


def test_a_search_that_was_cut_short_is_given_more_time_where_no_other_attack_applies() -> None:
    cut = Tried("matching", 0, [0.0], remark=Note("time was over; left untried: x", Code.CUT_SHORT))
    assert cut.got == "nothing in its time"
    audit = run_as(synthetic(), "unsum audit --model net.py:unet")
    assert audit.truth is not None
    network = replace(audit, truth=replace(audit.truth, class_names=[]), bound=bounded(1, 1, 1))
    network = replace(network, shares=shares(0.1, 0.1, 0.1), tried=[cut])
    assert "unsum audit --model net.py:unet --time-limit 600" in commands(network)
    assert "unsum list" not in commands(network)
    patient = replace(network, tried=[replace(cut, remark="")])
    assert not any("--time-limit" in command for command in commands(patient))


def test_a_client_that_trained_otherwise_is_not_asked_for_its_batch_size() -> None:
    doubted = replace(captured(exact=False).leak, training_doubt=ADAPTIVE)
    audit = replace(captured(exact=False), leak=doubted, undecided=doubted.undecided)
    assert audit.verdict.headline.startswith("Not decidable: the change fits no SGD")
    assert not any("--batch-size-known" in command for command in commands(audit))
    crowd = replace(audit, leak=replace(doubted, training_doubt=""), undecided="a crowd")
    assert any("--batch-size-known" in command for command in commands(crowd))
