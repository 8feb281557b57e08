"""The label distribution of local steps: figures by hand, what counts as given away, and every
place that shows it."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import unsum
from support.audits import shares
from unsum.audit.distribution import GIVEN_AWAY, LabelDistribution, is_telling
from unsum.audit.report import Audit, render_markdown
from unsum.audit.verdict import judge
from unsum.leak import LabelCounts


def counts(
    found: list[float], low: list[float], high: list[float], samples: int | None
) -> LabelCounts:
    values = [
        torch.tensor(one, dtype=torch.float64) for one in (found, low, high, [0.0] * len(found))
    ]
    return LabelCounts(values[0], values[1], values[2], values[3], 0.9, samples, 12)


def test_classes_stand_with_their_intervals_beside_the_truth() -> None:
    told = LabelDistribution.of(
        counts([3, 12, 5], [1, 10, 4], [5, 14, 6], 20), "abc".__getitem__, [1] * 11 + [2] * 9
    )
    assert [one.name for one in told.classes] == ["b", "c", "a"]
    assert [one.cells for one in told.classes] == [
        ("12", "10 to 14", "11"),
        ("5", "4 to 6", "9"),
        ("3", "1 to 5", "0"),
    ]
    assert told.sentence == "Labels, of 20 samples: b: 12 (10 to 14), c: 5 (4 to 6), a: 3 (1 to 5)."


def test_shares_are_compared_with_shares() -> None:
    told = LabelDistribution.of(
        counts([0.25, 0.75], [0.2, 0.7], [0.3, 0.8], None), "ab".__getitem__, [1, 1, 1, 0]
    )
    assert [one.cells for one in told.classes] == [
        ("75 %", "70 % to 80 %", "75 %"),
        ("25 %", "20 % to 30 %", "25 %"),
    ]
    assert told.to_dict()["classes"][0]["true"] == 0.75


@pytest.mark.parametrize(
    ("low", "high", "telling"),
    [
        ([8.0, 8.0], [12.0, 12.0], True),  # at most 4 of 20 may stand elsewhere
        ([5.1, 5.1], [14.9, 14.9], True),  # 9.8
        ([5.0, 5.0], [15.0, 15.0], False),  # half of them
        ([0.0, 0.0], [20.0, 20.0], False),
        ([0.0, 10.0], [20.0, 10.0], False),  # as much below as above
        # nothing is missing anywhere, so nothing can be more elsewhere
        ([10.0, 10.0], [20.0, 20.0], True),
    ],
)
def test_given_away_is_what_places_more_than_half_of_the_labels(
    low: list[float], high: list[float], telling: bool
) -> None:
    assert is_telling(counts([10.0, 10.0], low, high, 20)) is telling


def test_nothing_counted_is_nothing_told() -> None:
    assert not is_telling(None)


@pytest.fixture(scope="module")
def simulated() -> Audit:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Linear(24, 4))
    data = torch.randn(48, 30), torch.tensor([0] * 30 + [1] * 12 + [2] * 6)
    return unsum.audit(
        model, data, learning_rate=0.02, local_steps=12, epochs=3, batch_size_known=True
    )


def test_a_simulated_client_of_many_steps_gives_its_labels_away(
    simulated: Audit, tmp_path: Path
) -> None:
    told = simulated.distribution
    assert told is not None
    judged = partial(judge, simulated.leak, simulated.samples)
    assert (
        judged(shares(*[math.nan] * 48), "it took 12 steps").headline
        == f"{GIVEN_AWAY}; whether more cannot be decided."
    )
    assert (
        judged(shares(*[0.0] * 48)).headline
        == f"{GIVEN_AWAY}; no attack tried reads how the samples look."
    )
    assert (judged(shares(*[0.0] * 48)).level, judged(shares(*[0.0] * 47, 0.5)).level) == (
        "labels",
        "partial",
    )
    assert {one.name: one.true for one in told.classes} == {
        "class 0": 30,
        "class 1": 12,
        "class 2": 6,
        "class 3": 0,
    }
    assert sum(one.low <= (one.true or 0) <= one.high for one in told.classes) >= 3
    assert told.sentence in repr(simulated)
    assert "| class 0 |" in render_markdown(simulated)
    assert (
        "The client&#39;s labels" in simulated.write(tmp_path / "report").read_text()
        or "The client's labels" in (tmp_path / "report" / "report.html").read_text()
    )
    assert len(simulated.rows) == 48  # the truth is known: they are the client's own
