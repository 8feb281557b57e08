"""The search for greens that simple attacks contradict: it goes on where it ended, and sees what a blind audit would miss."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import unsum
from unsum_bench.scripts import greens


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


def test_a_blind_audit_is_contradicted() -> None:
    blind = SimpleNamespace(labels=None, occurred=[])
    case = greens.Case("mlp", 8, 4, 40, "", size_known=False, alike=False, seed=3)
    model, data = case.model(), case.data()
    found = greens.contradictions(case, model, unsum.capture(model, *data), data, blind)
    assert found["ratio"] > 0.9
    assert {"exact", "bias-sign", "row-sum", "row sums"} <= set(found)
    coded = replace(case, kind="embedded")
    model, data = coded.model(), coded.data()
    found = greens.contradictions(coded, model, unsum.capture(model, *data), data, blind)
    assert found["embedding rows"] == pytest.approx(1.0)
    two = replace(case, kind="pooled", side=16, samples=2)
    model, data = two.model(), two.data()
    assert greens.by_matching(model, unsum.capture(model, *data), *data) > 0.5


def test_noise_contradicts_nothing_and_passes() -> None:
    outcome = greens.tried(greens.Case("mlp", 8, 4, 40, "noise:1", size_known=False, alike=False, seed=3))
    assert (outcome.green, outcome.level, outcome.contradicted) == (True, "protected", {})


def test_children_differ_in_few_genes() -> None:
    chance = random.Random(0)
    parent = greens.Case.drawn(chance)
    for _ in range(20):
        other = vars(parent.child(chance))
        assert sum(other[name] != value for name, value in vars(parent).items()) <= 3
    assert torch.equal(parent.data()[1], parent.data()[1])
