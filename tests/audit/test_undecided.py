"""Never a false reassurance: where a sample can be read the verdict says so, and where no attack
applies it is not 0 %."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.long import long
from unsum.attack.any_network import PROVES_NOTHING
from unsum.audit import Audit
from unsum.audit.gate import render_junit, render_sarif
from unsum.audit.leakage import Tried
from unsum.audit.report import render
from unsum.defend import Defense, parse_defense
from unsum.gradients import inputs_of

READ = 1e-3  # relative error of a row that the ratio reads
TABLES = range(10)
CROWD = 9


def table(seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network for tables of 2 to 5 classes with two or three dense layers, and a batch of 1 to 8
    rows."""
    torch.manual_seed(seed)
    classes, rows, columns = 2 + seed % 4, 1 + int(torch.randint(8, ())), 6 + seed
    hidden = [nn.Linear(columns, 24), nn.ReLU()] + [nn.Linear(24, 16), nn.ReLU()] * (seed % 2)
    width = 16 if seed % 2 else 24
    net = nn.Sequential(*hidden, nn.Linear(width, classes))
    return net, torch.randn(rows, columns), torch.randint(classes, (rows,))


def readable(model: nn.Module, x: Tensor, y: Tensor) -> set[int]:
    """The oracle, which sees the truth: samples that some row of some dense layer over its bias is,
    one by one."""
    update = unsum.capture(model, x, y)
    found = set()
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        with inputs_of(layer) as seen, torch.no_grad():
            model(x)
        grad_W, grad_b = (
            update.gradients[f"{name}.{part}"].double() for part in ("weight", "bias")
        )
        for row in (grad_b != 0).nonzero()[:, 0].tolist():
            off = (grad_W[row] / grad_b[row] - seen[0].double()).norm(dim=1)
            size = seen[0].double().norm(dim=1)
            found |= set((off < READ * size).nonzero()[:, 0].tolist())
    return found


@pytest.mark.parametrize("seed", TABLES)
def test_a_table_whose_rows_can_be_read_is_never_called_low(seed: int) -> None:
    model, x, y = table(seed)
    read = readable(model, x, y)
    audit = unsum.audit(model, (x, y))
    assert all(audit.leakages[i] > 0.99 for i in read)
    assert audit.verdict.level not in ("unproven", "protected", "labels")
    if read:
        assert audit.verdict.state == "leaks"
        assert audit.gate(0.2).exit_code == 1
    else:
        assert audit.verdict.state == "not decidable" or max(audit.leakages) > 0.2


def test_the_oracle_has_something_to_find() -> None:
    read = [len(readable(*table(seed))) for seed in TABLES]
    assert sum(count > 0 for count in read) >= 5


@cache
def crowd(*defenses: Defense) -> Audit:
    """More samples than the head tells apart, and units that see all of them: no method applies."""
    torch.manual_seed(10)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    return unsum.audit(net, (torch.randn(CROWD, 8), torch.arange(CROWD) % 3), defenses=defenses)


class TestACrowd:
    def test_the_cause_is_named(self) -> None:
        verdict = crowd().verdict
        assert (verdict.state, verdict.level) == ("not decidable", "open")
        assert math.isnan(verdict.share)
        assert verdict.headline == (
            "Not decidable: the batch is at least as large as the number of classes: the last "
            "layer alone cannot tell more than 2 samples apart."
        )

    def test_it_is_nowhere_zero_percent_nor_green(self) -> None:
        audit = crowd()
        assert all(map(math.isnan, audit.leakages))
        content = audit.to_dict()
        assert content["verdict"]["share"] is None
        assert content["verdict"]["state"] == "not decidable"
        assert [row["leakage"] for row in content["samples"]] == [None] * CROWD
        page = render(audit)
        assert 'class="verdict open"' in page
        assert (
            re.findall(r"(?<![\d.])0\s%(?! correct)", page[: page.index("The words used here")])
            == []
        )

    def test_no_gate_lets_it_pass(self) -> None:
        audit = crowd()
        gate = audit.gate(0.99)
        assert (gate.result, gate.exit_code) == ("undecided", 2)
        assert "cannot tell more than 2 samples apart" in gate.reason
        suite = ElementTree.fromstring(render_junit(audit, gate))
        assert (suite.get("errors"), suite.get("failures")) == (str(CROWD), "0")
        (run,) = json.loads(render_sarif(audit, gate))["runs"]
        assert {result["ruleId"] for result in run["results"]} == {"leakage-unknown"}
        assert "at least as large as the number of classes" in run["results"][0]["message"]["text"]

    def test_noise_hides_the_crowd_from_the_attack_and_not_from_the_audit(self) -> None:
        audit = crowd(parse_defense("noise:0.5"))
        assert audit.undecided.startswith("the batch is at least as large as the number of classes")
        assert audit.verdict.state == "protected"  # the ceiling decides what no attack can
        unbounded = replace(audit, bound=None)
        assert unbounded.verdict.state == "not decidable"


def test_every_attack_tried_is_in_the_table() -> None:
    model, x, y = table(0)
    audit = unsum.audit(model, (x, y))
    names = [one.attack for one in audit.tried]
    # two classes and four samples: the head alone cannot tell them apart
    assert names[0] == "spans"
    assert [name for name in names if not name.startswith("labels by")][-1] == "ratio"
    for i, value in enumerate(audit.leakages):
        if not math.isnan(value):
            assert value == max(one.leakages[i] for one in audit.tried if one.leakages)
            assert audit.by[i] in names
    page = render(audit)
    assert all(f'<th scope="row" class="text">{name}</th>' in page for name in names)


def test_without_the_last_layer_nothing_is_decided() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 12))
    data = torch.rand(3, 3, 8, 8), torch.tensor([1, 2, 3])
    audit = unsum.audit(net, data, defenses=parse_defense("drop-head"))
    assert audit.verdict.state == "not decidable"
    assert "lacks '3.weight'" in audit.verdict.headline
    assert audit.gate(0.9).exit_code == 2


def test_a_layer_below_a_missing_head_is_asked_all_the_same() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    audit = unsum.audit(
        net, (torch.randn(3, 10), torch.tensor([0, 1, 1])), defenses=parse_defense("drop-head")
    )
    assert audit.verdict.state == "leaks"
    assert {name for name in audit.by if name} == {"ratio"}


def test_an_update_of_adapters_alone_is_not_decidable(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 20))
    sent = unsum.capture(net, torch.randn(3, 8), torch.tensor([1, 2, 3]))
    adapters = unsum.Update({"0.weight": sent.gradients["0.weight"]})
    audit = unsum.audit(net, update=adapters)
    assert audit.verdict.state == "not decidable"
    gate = audit.gate(0.9)
    assert gate.exit_code == 2
    assert ElementTree.fromstring(render_junit(audit, gate)).get("errors") == "1"
    assert (
        json.loads(render_sarif(audit, gate))["runs"][0]["results"][0]["ruleId"]
        == "leakage-unknown"
    )
    audit.write(tmp_path / "report")


@pytest.mark.long
def test_local_steps_beyond_reach_are_not_decidable() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 20))
    grad = unsum.capture(net, torch.randn(3, 8), torch.tensor([1, 2, 3])).gradients
    delta = {name: -0.5 * g + 0.1 * torch.randn_like(g) for name, g in grad.items()}
    training = unsum.LocalTraining(0.5, 50)
    update = unsum.Update.from_delta(delta, 0.5 * 50, training=training)
    audit = unsum.audit(net, update=update)
    assert audit.verdict.state == "not decidable"
    assert "50 local steps" in audit.verdict.reason


def test_time_that_ran_out_decides_nothing() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 30))
    update = unsum.capture(net, torch.randn(20, 30), torch.randint(30, (20,)))
    assert unsum.attack(net, update, batch_size=20).exact
    leak = unsum.attack(net, update, batch_size=20, time_limit=1e-3)
    assert not leak.exact
    assert leak.undecided.startswith("time was over")


def test_what_leaks_not_to_these_attacks_is_still_said() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 30))
    data = torch.randn(4, 30), torch.arange(4)
    audit = unsum.audit(net, data, defenses=parse_defense("noise:10"))
    assert audit.verdict.state == "protected"  # noise of 10 hides all: the ceiling says so
    assert (
        unsum.audit(net, data, defenses=parse_defense("noise:10"), ceiling=False).verdict.state
        == "unproven"
    )
    assert audit.gate(0.3).exit_code == 0


def test_a_line_says_what_an_attack_got_and_why_that_is_nothing() -> None:
    assert Tried("ratio", 0, [], remark="a unit may see several samples").got == "no whole sample"
    assert (
        Tried("exact", 2, [], exact=True, predicted_error=1e-6).got
        == "2 samples, certified, predicted error 1.0e-06"
    )
    blind = Tried("exact", 3, [0.1, 0.0], remark="the head has its full rank")
    assert (blind.got, blind.empty) == ("nothing, and does not apply", True)
    searched = Tried("rog", 2, [0.1, 0.0], remark=PROVES_NOTHING)
    assert searched.got == "nothing; a search that finds no picture proves nothing"
    part = Tried("fgla", 3, [0.1, 0.7], remark="the head has its full rank")
    assert (part.got, part.empty) == ("1 of 2 samples, up to 70 %", False)
    assert Tried("crowded", refused=True, remark="it needs the labels").empty
    assert not Tried("exact", 2, [0.01, 0.0]).empty  # it applies, and that is what it got


def test_without_an_answer_no_figure_is_given() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 5))
    data = torch.randn(2, 1, 8), torch.tensor([0, 1])
    for audit in (
        unsum.audit(model, update=unsum.capture(model, *data, defenses=unsum.DropHead())),
        unsum.audit(model, data, defenses=unsum.DropHead()),
    ):
        assert (
            audit.verdict.details[0]
            == "No attack gave an answer: no label and no sample was found."
        )
        page = render(audit)
        assert "No attack gave an answer, so there is nothing to show" in page
        assert "of the gradient left unexplained" not in page
        assert ("Measure with samples of your own" in page) == (audit.truth is None)
        assert not any(
            "error" in sentence or "0 of" in sentence for sentence in audit.verdict.details
        )


PRUNED_AWAY = "no attack that was tried reads the dense layers below the last one"


def dense_batch() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Two dense layers, fewer samples than classes, and units that see all of them, who are much
    alike."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 10))
    return net, (1 + torch.randn(8, 30) / 10, torch.arange(8) % 5)


@pytest.mark.parametrize("defense", ["prune:0.9", *long("sign")])
def test_dense_layers_that_nobody_can_read_once_entries_are_gone_are_not_called_safe(
    defense: str,
) -> None:
    """With holes filled by a typical sample, the rows that survive hold up to nine tenths of one.
    That much of every sample of these, which are all alike, is known with it; of samples that
    differ it is nothing."""
    net, (rows, labels) = dense_batch()
    assert (
        unsum.audit(net, (rows, labels), defenses=parse_defense(defense)).gate(0.2).exit_code != 0
    )
    audit = unsum.audit(net, (rows + torch.randn(8, 30), labels), defenses=parse_defense(defense))
    assert audit.verdict.state not in ("unproven", "protected")
    assert PRUNED_AWAY in audit.undecided


def test_a_head_alone_is_decided_once_entries_are_gone() -> None:
    """Nothing lies below it, and the adaptive attack reads what is left of it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(288, 10))
    audit = unsum.audit(
        net, (torch.rand(8, 3, 8, 8), torch.arange(8)), defenses=parse_defense("prune:0.99")
    )
    assert audit.verdict.state != "not decidable"


@pytest.mark.long
def test_steps_taken_for_one_decide_nothing() -> None:
    """An adaptive answer to a client that took four steps leaves the samples that it lacks open:
    they are not 0 %."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 10))
    data = torch.randn(8, 30), torch.arange(8) % 3
    how = {
        "local_steps": 4,
        "epochs": 2,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "learning_rate": 0.05,
    }
    audit = unsum.audit(net, data, **how)
    assert not any(value < 0.2 for value in audit.leakages)
    for one in audit.tried:
        assert one.refused or one.remark or one.exact or one.attack == "local-steps"
    assert not any("was added," in note and "own steps" not in note for note in audit.leak.notes)
