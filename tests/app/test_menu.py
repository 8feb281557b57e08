"""The strengths on offer."""

from __future__ import annotations

import pytest

from unsum.app.order import menu, offer
from unsum.defend import DEFENSES
from unsum.errors import UnsumError

# By name: the menu itself takes seconds, for what DP-SGD promises, and every process collects this
# file.
OFFERED = [entry.name for entry in DEFENSES if entry.name not in ("secagg", "soteria")]


@pytest.mark.parametrize("name", OFFERED)
def test_every_stop_makes_a_defense_and_they_get_stronger(name: str) -> None:
    line = menu()[name]
    made = [line.at(stop) for stop in range(max(1, len(line.strengths)))]
    assert all(type(defense) is DEFENSES[name] for defense in made)
    strengths = [defense.strength for defense in made]
    assert strengths == sorted(strengths, reverse=not DEFENSES[name].axis.rising)
    assert len(set(strengths)) == len(strengths)


def test_what_cannot_run_here_is_not_offered() -> None:
    assert list(menu()) == OFFERED
    assert {"noise", "clip", "prune", "sign", "drop-head"} <= set(OFFERED)


@pytest.mark.parametrize("stop", [-1, 25, 10**9])
def test_a_stop_beyond_the_slider_is_refused(stop: int) -> None:
    with pytest.raises(UnsumError, match="one of 25 stops"):
        offer("noise").at(stop)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnsumError, match="did you mean 'noise'"):
        offer("nosie")


def test_dp_says_what_its_strengths_promise() -> None:
    dp = menu()["dp"]
    assert len(dp.promises) == len(dp.strengths)
    assert dp.promises[dp.strengths.index(1.0)] == "ε = 4.7 for this update, at δ = 1e-05"
    assert menu()["noise"].promises == []
