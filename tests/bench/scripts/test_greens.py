"""The search for greens that simple attacks contradict: it goes on where it ended, and sees what a
blind audit would miss."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unsum_bench.scripts import greens, simple_attacks


def test_a_search_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def audited(case: object) -> object:
        asked.append(case)
        return greens.Outcome(vars(case), gate="passed", level="low", worst=0.1)

    monkeypatch.setattr(greens, "tried", audited)
    first = greens.search(4, 1, tmp_path / "greens.json")
    again = greens.search(6, 1, tmp_path / "greens.json")
    assert (len(asked), again[:4]) == (6, first)
    assert greens.search(6, 1, None) == again  # and as it would have gone without an end
    assert greens.told(again).startswith("6 audits: 6 passed")
    assert greens.outcomes([tmp_path / "greens.json", tmp_path / "greens.json"]) == again * 2
    assert greens.search(9, 1, tmp_path / "greens.json", minutes=0.0) == again


def blind(result: str = "passed") -> Any:
    """An audit that saw nothing."""
    return SimpleNamespace(
        labels=None,
        occurred=[],
        bound=None,
        gate=lambda _level: SimpleNamespace(result=result),
    )


@pytest.mark.long
def test_a_blind_audit_is_contradicted() -> None:
    case = greens.Case("mlp", 8, 4, 40, "", size_known=False, alike=False, seed=3)
    model, data = case.model(), case.data()
    found = greens.contradictions(case, model, data, blind())
    assert found["ratio"] > 0.9
    assert found["exact"] > 0.99
    labels = {f"labels by {rule}" for rule in ("exact", "bias-sign", "row-sum", "row sums")}
    assert labels | {"rows, labels by bias-sign", "fgla, labels by row sums"} <= set(found)
    of_open = greens.contradictions(case, model, data, blind("undecided"))
    assert of_open
    assert all(name.startswith("labels by") for name in of_open)
    coded = replace(case, kind="embedded")
    model, data = coded.model(), coded.data()
    assert greens.contradictions(coded, model, data, blind())["embedding rows"] == pytest.approx(
        1.0
    )


@pytest.mark.parametrize(("defense", "setting"), [("", "ig, masked"), ("sign", "rog")])
@pytest.mark.long
def test_matching_draws_what_a_gate_must_not_pass(defense: str, setting: str) -> None:
    case = greens.Case("pooled", 16, 2, 20, defense, size_known=False, alike=False, seed=5)
    model, data = case.model(), case.data()
    target = greens.Target(model, *data, classes=20, size_known=False, seed=5)
    by_matching = simple_attacks.by_matching
    assert by_matching(setting, target, greens.sent(case, model, data, 5)) > 0.5
    assert (
        by_matching(
            setting, target, greens.sent(replace(case, defense="noise:100"), model, data, 5)
        )
        < 0.2
    )


@pytest.mark.long
def test_noise_contradicts_nothing_and_passes() -> None:
    outcome = greens.tried(
        greens.Case("mlp", 8, 4, 40, "noise:1", size_known=False, alike=False, seed=3)
    )
    assert (outcome.green, outcome.level, outcome.contradicted) == (True, "protected", {})


def test_children_differ_in_few_genes() -> None:
    chance = random.Random(0)
    parent = greens.Case.drawn(chance)
    for _ in range(20):
        other = vars(parent.child(chance))
        assert sum(other[name] != value for name, value in vars(parent).items()) <= 3
    assert torch.equal(parent.data()[1], parent.data()[1])
