"""A prediction that something speaks against is none: NaN, and what answers are chosen by stays an
estimate."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

import unsum
from unsum.certify.claim import Evidence, grant
from unsum.certify.doubts.merged import proportional
from unsum.leak import Attempt, Leak
from unsum_bench.scripts.fool import head, judge


def leak_of(predicted: float, *, predicts: bool) -> Leak:
    rows = torch.zeros(1, 2)
    return Leak("exact", rows, rows, rows, 0.0, predicted, False, predicts=predicts)


@pytest.mark.parametrize(
    ("predicted", "predicts", "told"),
    [
        (0.2, True, 0.2),
        (0.2, False, math.nan),
        (1.5, True, math.nan),  # of an error larger than the sample nothing is known but that
        (math.inf, False, math.inf),
        (math.nan, True, math.nan),
    ],
)
def test_what_is_handed_out(predicted: float, predicts: bool, told: float) -> None:
    leak = leak_of(predicted, predicts=predicts)
    leak = replace(leak, tried=[Attempt("exact", leak)])
    for published in (leak.published(), leak.published().published()):
        assert published.predicted_error == pytest.approx(told, nan_ok=True)
        assert published.estimate == pytest.approx(predicted, nan_ok=True)
        assert published.tried[0].leak is not None
        assert published.tried[0].leak.predicted_error == pytest.approx(told, nan_ok=True)


def test_a_doubt_takes_the_prediction_back() -> None:
    evidence = Evidence(torch.tensor([0.5, 0.2]), explained=True, confirmations=1)
    assert grant(evidence).predicts  # not certain, but nothing speaks against an error of 0.5
    for less in (
        {"doubts": ["Siblings."]},
        {"confirmations": 0},
        {"missing": 1},
        {"explained": False},
    ):
        claim = grant(replace(evidence, **less))  # type: ignore[arg-type]
        assert (claim.predicts, claim.predicted_error) == (False, 0.5)


def test_crowded_predicts_nothing_where_its_answer_leaves_the_gradient() -> None:
    """Samples that are multiples of one another."""
    torch.manual_seed(0)
    model, x = (
        nn.Linear(64, 4),
        torch.randn(1, 64).relu() * torch.tensor([[1.0], [1.001], [1.002], [1.003]]),
    )
    labels = torch.arange(4)
    leak = unsum.separate(model, unsum.capture(model, x, labels), "crowded", labels=labels)
    error = float((torch.cdist(leak.features, x) / x.norm(dim=1)).amin(1).max())
    assert math.isnan(leak.predicted_error) or error < max(3e-2, 10 * leak.predicted_error)


def test_multiples_of_another_label_are_named() -> None:
    x = torch.tensor([[1.0, 2.0], [2.0, 4.0], [-1.0, -2.0], [1.0, 2.03]])
    assert proportional(x, torch.tensor([0, 1, 1, 1])).tolist() == [True] * 4
    assert proportional(x[[0, 1, 3]], torch.tensor([0, 0, 0])).tolist() == [False] * 3
    assert proportional(x[[0, 2]], torch.tensor([0, 1])).tolist() == [True, True]
    # 2 % apart
    assert not bool(
        proportional(torch.tensor([[1.0, 2.0], [1.0, 2.1]]), torch.tensor([0, 1])).any()
    )


@pytest.mark.long
def test_predictions_of_the_exact_solver_are_honest_on_bred_cases() -> None:
    """Where anything is predicted no sample found is off by more than 3 % and ten times that."""
    chance, predicted = random.Random(3), 0
    for _ in range(40):
        genome = head.random_genome(chance, tame=True) | {
            "forged": "no",
            "method": "exact",
            "told": "nothing",
            "objective": "plain",
            # of what nobody told of next to nothing can be predicted: 3 of 40 without these
            "weights are": "alike",
            "client": "plain",
            "biased_gradient": True,
        }
        case = head.build(genome)
        leak = unsum.separate(case.model, case.update, "exact", seed=0)
        if math.isfinite(leak.predicted_error):
            predicted += 1
            assert judge.nearest(case.features, leak) <= max(3e-2, 10 * leak.predicted_error)
    assert predicted >= 4
