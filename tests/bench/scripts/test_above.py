"""The search for attacks above their ceiling: it finds none in a small run, and it finds every broken ceiling."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from unsum.ceiling import coin
from unsum.ceiling.coin import Separation
from unsum_bench.scripts import above


@pytest.mark.long
def test_a_small_search_finds_nothing_above(tmp_path: Path) -> None:
    record = above.search(above.Record(), 0, cases=16, attackers=["told", "exact", "label: ilrg"])
    assert record.cases + record.refused + record.crashes == 16
    assert record.cases > 8
    assert record.above == []
    path = tmp_path / "record.json"
    record.write(path)
    again = above.search(above.Record.read(path), 1, cases=3, attackers=["told"])
    assert again.cases + again.refused == record.cases + record.refused + 3
    assert "0 above their ceiling" in again.sentence()


def genome(**changed: object) -> dict[str, object]:
    plain = {"attacker": "told", "secret": "sample", "network": "tanh", "loss": "ce", "training": "gradient"}
    rest = {"before": "nothing", "after": "nothing", "kind": "gaussian", "samples": 3, "noise": 0.5, "spread": 0.5}
    return above.fresh(random.Random(0), ["told"]) | plain | rest | {"head": 1.0, "seed": 5} | changed


@pytest.mark.long
@pytest.mark.parametrize(("secret", "noise"), [("label", 4.0), ("presence", 1.0)])
def test_half_the_distance_is_found_out(secret: str, noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = above.Record()
    above.try_case(genome(secret=secret), honest)
    assert honest.above == []
    whole = Separation.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Separation, "of", classmethod(lambda cls, *a, **k: replace(one := whole(cls, *a, **k), squared=one.squared / 4))
    )
    broken = above.Record()
    above.try_case(genome(secret=secret, noise=noise), broken, pairs=30)
    assert len(broken.above) == 1


def test_a_share_that_is_too_small_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The posterior mean explains more than half of what a coin in noise allows."""
    monkeypatch.setattr(coin, "_known", lambda ratio: 0.1 * math.tanh(ratio**2))
    broken = above.Record()
    above.try_case(genome(noise=0.2), broken)
    assert len(broken.above) == 1
