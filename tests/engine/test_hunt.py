"""A search in rounds, by hand: when it has found all, and what else ends it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from unsum.engine import budget as engine_budget
from unsum.engine.budget import Budget
from unsum.engine.found import FoundPoints
from unsum.engine.hunt import Hunt
from unsum.running.deadline import time_limit
from unsum.running.progress import SILENT

NOTHING = FoundPoints.none(torch.zeros(1, 1))


@dataclass
class Listed(Hunt[FoundPoints]):
    """Round i ends in the points of entry i, and in nothing after the last one."""

    ends: list[list[float]] = field(default_factory=list)
    seen: list[tuple[int, int]] = field(default_factory=list)  # (points, barren rounds)
    deflated: list[tuple[int, bool]] = field(default_factory=list)

    def round(self, found: FoundPoints, barren: int) -> FoundPoints:
        self.seen.append((len(found), barren))
        ends = self.ends[len(self.seen) - 1] if len(self.seen) <= len(self.ends) else []
        return FoundPoints.unranked(torch.tensor(ends, dtype=torch.float64)[:, None])

    def deflate(self, found: FoundPoints, *, gained: bool) -> None:
        self.deflated.append((len(found), gained))


PLAIN = Budget()


def hunt(wanted: int, *ends: list[float], budget: Budget = PLAIN) -> Listed:
    return Listed(wanted, budget, "further rounds", SILENT, list(ends))


def test_it_ends_as_soon_as_each_is_found_twice() -> None:
    """2 is found once in the first round and once in the third; the fourth is not made."""
    search = hunt(2, [1.0, 1.0, 2.0], [1.0], [2.0], [3.0])
    found = search.run(NOTHING)
    assert sorted(found.points.flatten().tolist()) == [1.0, 2.0]
    assert sorted(found.hits.tolist()) == [2.0, 3.0]
    assert search.seen == [(0, 0), (2, 0), (2, 1)]
    assert search.deflated == [(2, True), (2, False)]  # and nothing is left to be found


def test_rounds_without_a_gain_are_the_end() -> None:
    """A second hit is a gain as a new point is; a third hit is none."""
    search = hunt(9, [1.0], [1.0], [1.0], [1.0], [2.0], budget=Budget(barren=2))
    assert search.run(NOTHING).hits.tolist() == [4.0]
    assert [barren for _, barren in search.seen] == [0, 0, 0, 1]


def test_more_than_were_wanted_may_be_found() -> None:
    found = hunt(1, [1.0, 2.0], [1.0], [2.0], [3.0]).run(NOTHING)
    assert len(found) == 2


def test_what_is_one_is_declared_by_the_budget() -> None:
    assert len(hunt(1, [1.0, 1.01]).run(NOTHING)) == 2
    assert len(hunt(1, [1.0, 1.01], budget=Budget(same=0.1)).run(NOTHING)) == 1


def test_rounds_are_limited() -> None:
    search = hunt(9, [1.0], [2.0], [3.0], budget=Budget(rounds=2))
    assert len(search.run(NOTHING)) == 2


def test_seconds_without_a_gain_are_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(hunt(9, [1.0], budget=Budget(idle=0.0)).run(NOTHING)) == 0
    monkeypatch.setattr(engine_budget, "PATIENCE", 0.0)
    assert len(hunt(9, [1.0]).run(NOTHING)) == 0
    assert len(hunt(9, [1.0], budget=Budget(idle=60.0)).run(NOTHING)) == 1


def test_the_attack_s_time_is_the_end_and_what_was_left_out_is_named() -> None:
    with time_limit(1e-9) as deadline:
        assert len(hunt(9, [1.0]).run(NOTHING)) == 0
    assert deadline.cut == ["further rounds"]


def test_what_was_known_before_counts() -> None:
    known = FoundPoints.unranked(torch.tensor([[1.0]], dtype=torch.float64))
    search = hunt(1, [1.0], [2.0])
    assert search.run(known).hits.tolist() == [2.0]
    assert len(search.seen) == 1
