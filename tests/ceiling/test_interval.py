"""Bracket hold as often as they say, whatever the draws are like and whenever they end."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from unsum.ceiling import interval
from unsum.ceiling.interval import lower_limit, upper_limit

N = 1500  # simulated samples of each kind
ALPHA = 0.01
# misses: 1 %, and three deviations of that count
ALLOWED = ALPHA * N + 3 * math.sqrt(ALPHA * (1 - ALPHA) * N)

Draw = Callable[[np.random.Generator, int], np.ndarray]


def bernoulli(mean: float) -> Draw:
    return lambda random, n: (random.random(n) < mean).astype(float)


def beta(a: float, b: float) -> Draw:
    return lambda random, n: random.beta(a, b, n)


def stratified(random: np.random.Generator, n: int) -> np.ndarray:
    """Cycles of four strata with means 0.02, 0.05, 0.1 and 0.63: 0.2 together."""
    return (random.random((n // 4, 4)) < np.array([0.02, 0.05, 0.1, 0.63])).astype(float).ravel()


KINDS: dict[str, tuple[Draw, float]] = {
    "bernoulli 0.05": (bernoulli(0.05), 0.05),
    "bernoulli 0.2": (bernoulli(0.2), 0.2),
    "bernoulli 0.9": (bernoulli(0.9), 0.9),
    "beta": (beta(0.3, 0.7), 0.3),
    "beta, narrow": (beta(30, 70), 0.3),
    "stratified": (stratified, 0.2),
}


def refuted(draws: np.ndarray, mean: float) -> bool:
    """Whether the limit lies below `mean`: capital against it has passed 1/α."""
    return interval._log_capital(draws, mean) >= -math.log(ALPHA)


def misses(draw: Draw, mean: float, *, ends: range, seed: int = 0, upper: bool = True) -> int:
    """How often a limit is wrong at any of the `ends`, where one would have liked to stop."""
    count = 0
    for number in range(N):
        x = draw(np.random.default_rng([seed, number]), ends[-1])
        x, m = (x, mean) if upper else (1 - x, 1 - mean)
        count += any(refuted(x[:end], m) for end in ends)
    return count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("upper", [True, False], ids=["upper", "lower"])
def test_limits_miss_in_at_most_one_of_a_hundred_cases(kind: str, upper: bool) -> None:
    draw, mean = KINDS[kind]
    assert misses(draw, mean, ends=range(64, 65), upper=upper) <= ALLOWED


@pytest.mark.parametrize("kind", ["bernoulli 0.2", "beta", "stratified"])
def test_who_stops_as_soon_as_it_suits_gains_nothing(kind: str) -> None:
    draw, mean = KINDS[kind]
    assert misses(draw, mean, ends=range(4, 129, 4)) <= ALLOWED


def test_the_limit_is_where_the_capital_refutes() -> None:
    x = np.random.default_rng(0).random(32) * 0.4
    limit = upper_limit(x, 1 - ALPHA)
    assert refuted(x, limit + 1e-9)
    assert not refuted(x, limit - 1e-9)
    assert lower_limit(1 - x, 1 - ALPHA) == pytest.approx(1 - limit)


def test_limits_are_narrow_where_they_matter() -> None:
    """Against 1 − α^(1/n), which nobody can beat for equal draws of 0: 0.069 at 64."""
    assert 1 - ALPHA ** (1 / 64) < upper_limit([0.0] * 64, 0.99) < 0.09
    assert upper_limit([0.0] * 256, 0.99) < 0.03
    assert upper_limit([], 0.99) == 1


def test_bets_without_their_shares_of_the_capital_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mutation: eight bets with the whole capital each."""
    monkeypatch.setattr(interval, "_SHARES", np.ones(len(interval._BETS)))
    draw, mean = KINDS["bernoulli 0.2"]
    assert misses(draw, mean, ends=range(4, 129, 4)) > ALLOWED


def test_a_sample_that_is_not_drawn_in_whole_cycles_is_caught() -> None:
    """A mutation: the strata of small means alone, three draws in four."""

    def without_the_last(random: np.random.Generator, n: int) -> np.ndarray:
        return stratified(random, 4 * n // 3).reshape(-1, 4)[:, :3].ravel()

    assert misses(without_the_last, 0.2, ends=range(48, 49)) > ALLOWED
