"""The search for attacks above their ceiling: it finds none in a small run, and it finds every
broken ceiling."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from support.long import long
from unsum.ceiling import Observer, coin
from unsum.ceiling.coin import Separation
from unsum.defend.added import AddedNoise
from unsum_bench.scripts import above, above_attackers, above_clients


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
    plain = {
        "attacker": "told",
        "secret": "sample",
        "data": "picture",
        "network": "tanh",
        "loss": "ce",
        "training": "gradient",
        "before": "nothing",
        "after": "nothing",
        "kind": "gaussian",
        "observer": "server",
        "rounds": 1,
        "around": "own",
        "samples": 3,
        "bound": 8,
        "noise": 0.5,
        "spread": 0.5,
        "head": 1.0,
        "seed": 5,
    }
    return plain | changed


@pytest.mark.long
@pytest.mark.parametrize(("secret", "noise"), [("label", 4.0), ("presence", 1.0)])
def test_half_the_distance_is_found_out(
    secret: str, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = above.Record()
    above.try_case(genome(secret=secret), honest)
    assert honest.above == []
    whole = Separation.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Separation,
        "of",
        classmethod(
            lambda cls, *a, **k: replace(one := whole(cls, *a, **k), squared=one.squared / 4)
        ),
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


@pytest.mark.long
@pytest.mark.parametrize("kind", above.NOISE)
def test_the_oracle_stands_at_the_ceiling_under_every_noise(kind: str) -> None:
    """Of labels, whose limit is no estimate: Laplace's alone is looser than what the best attacker
    has."""
    record = above.Record()
    above.try_case(genome(secret="label", kind=kind, noise=1.5, spread=None), record)
    assert record.above == []
    assert record.highest > (-12 if kind.startswith("laplace") else -3)


@pytest.mark.parametrize("broken", [True, *long(False)])
def test_who_knows_all_worlds_is_held_against_all_their_pairs(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken:
        true = above_attackers.separated
        monkeypatch.setattr(
            above_attackers,
            "separated",
            lambda *a, **k: replace(one := true(*a, **k), squared=one.squared / 4),
        )
    record = above.Record()
    chosen = {"attacker": "every world", "data": "row", "around": "random", "noise": 0.3}
    above.try_case(genome(**chosen, samples=1, spread=None), record)
    assert len(record.above) == broken


@pytest.mark.long
@pytest.mark.parametrize("network", above_clients.HIDING)
def test_networks_that_hide_single_steps_are_played(network: str) -> None:
    """Around the client's own world nothing moves, or only there; elsewhere it is the other way."""
    moved = {}
    for around in ("own", "random"):
        client = above.Client.of(genome(data="row", network=network, around=around, spread=None))
        pairs = list(client.pairs(8, 1))
        apart = [(above_clients.flat(p.clean[0]) - above_clients.flat(p.clean[1])) for p in pairs]
        moved[around] = sum(float(one.norm()) > 1e-6 for one in apart)
    assert (moved["own"] > 0) == (network == "nearby")
    assert moved["random"] > 0 or network == "nearby"


def test_noise_that_others_round_away_behind_secure_aggregation_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of updates of ten thousand in half precision, a noise of less than eight is gone."""
    chosen = {"secret": "label", "after": "float16", "observer": "aggregate", "noise": 4.0}
    mended = above.Record()
    above.try_case(genome(**chosen, samples=2, spread=None), mended)
    assert mended.above == []
    sees = Observer.sees

    def all_of_it(observer: Observer, noise: AddedNoise | None) -> AddedNoise | None:
        return sees(observer, None if noise is None else replace(noise, processed=False))

    monkeypatch.setattr(Observer, "sees", all_of_it)
    broken = above.Record()
    above.try_case(genome(**chosen, samples=2, spread=None), broken)
    assert len(broken.above) == 1


@pytest.mark.long
def test_gradient_matching_answers() -> None:
    for attacker in ("dlg", "gradinversion"):
        record = above.Record()
        chosen = {
            "attacker": attacker,
            "network": "relu",
            "noise": 0.01,
            "spread": None,
            "samples": 2,
        }
        above.try_case(genome(**chosen), record)
        assert record.attackers == {attacker: 1}
        assert record.above == []


def test_searches_that_ran_side_by_side_are_one() -> None:
    one = above.Record(
        3, 30, 2.0, attackers={"told": 3}, highest=0.5, seeds=[1], crashed=["x"], crashes=1
    )
    other = above.Record(
        4, 40, 3.0, attackers={"told": 1, "dlg": 3}, highest=1.5, seeds=[2], refusals={"idlg": 2}
    )
    both = above.Record.merged([one, other])
    assert (both.cases, both.games, both.seconds, both.crashes, both.highest) == (
        7,
        70,
        5.0,
        1,
        1.5,
    )
    assert (both.attackers, both.refusals, both.seeds) == (
        {"told": 4, "dlg": 3},
        {"idlg": 2},
        [1, 2],
    )
    assert both.sentence().startswith("7 cases of 0 kinds, 70 games, 2 attackers in 5 s: 0 above")
