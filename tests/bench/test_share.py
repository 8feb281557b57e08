"""Shares of a run in stores of their own, and one store made of them."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from support.bench_cells import FGLA, cell, values
from support.bench_process import Result
from support.long import long
from unsum import UnsumError
from unsum_bench.declare import Cell
from unsum_bench.experiments import EXPERIMENTS
from unsum_bench.material import Material
from unsum_bench.measure import Outcome
from unsum_bench.pages import of_any_shard
from unsum_bench.plan import cells_of_all, of_attacks, share
from unsum_bench.run import run
from unsum_bench.store import Store

Bench = Callable[..., Result]
# Tables that share cells (the usual photos of 11 are those of 10), without their slow attack.
WORDS = ("rgla-10", "rgla-11", "--without", "rgla")


@pytest.mark.parametrize("count", [3, *long(10)])
def test_every_cell_is_in_exactly_one_shard_and_slow_ones_are_spread(count: int) -> None:
    cells = cells_of_all(EXPERIMENTS.values(), "small")
    shards = [share(cells, (number, count)) for number in range(1, count + 1)]
    assert Counter(cell for shard in shards for cell in shard) == Counter(cells)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    for shard in shards:
        # first batches first, as in the whole run
        assert [c.seed for c in shard] == sorted(c.seed for c in shard)
    slow = [sum(c.attack.name == "rgla" for c in shard) for shard in shards]
    kinds = len({(c.network, c.attack) for c in cells if c.attack.name == "rgla"})
    assert max(slow) - min(slow) <= kinds


def test_shards_merged_are_the_same_as_one_run(bench: Bench, tmp_path: Path) -> None:
    whole = bench(*WORDS, "--store", "whole.sqlite")
    for number in (1, 2, 3):
        bound = ("--minutes", f"{60 + number}")
        part = bench(
            *WORDS, "--store", f"part-{number}.sqlite", "--shard", f"{number}/3", *bound, "--json"
        )
        assert part.code == 0, part.err
        assert '"measured": 2' in part.out
    merged = bench(
        "merge", *(f"part-{number}.sqlite" for number in (1, 2, 3)), "--store", "merged.sqlite"
    )
    assert (merged.code, merged.out) == (
        0,
        "6 of 6 results were new or newer; merged.sqlite has 6.\n",
    ), merged.err
    with Store(tmp_path / "whole.sqlite") as one, Store(tmp_path / "merged.sqlite") as joined:
        assert values(joined) == values(one)
        assert len(values(one)) == 6
    again = bench(*WORDS, "--store", "merged.sqlite")
    assert "6 already in the store" in again.out
    assert whole.out.splitlines()[0] == again.out.splitlines()[0]
    with Store(tmp_path / "merged.sqlite") as joined:  # pages quote one command for all shards
        quoted = {of_any_shard(result.origin["command"]) for result in joined}
    assert quoted == {f"unsum bench {' '.join(WORDS)} --store part-I.sqlite --shard I/3 --json"}


def put(path: Path, key: str, psnr: float, status: str = "measured") -> None:
    with Store(path) as store:
        store.put(
            key, "declared", cell().content(), Outcome(status, {"psnr": psnr}), {"code": "abc"}
        )  # type: ignore[arg-type]


def test_of_one_key_the_newest_stays_and_a_measured_one_before_others(
    bench: Bench, tmp_path: Path
) -> None:
    old, new = tmp_path / "old.sqlite", tmp_path / "new.sqlite"
    put(old, "both", 1.0)
    put(old, "then failed", 2.0)
    put(old, "old alone", 3.0)
    put(new, "both", 10.0)
    put(new, "then failed", 0.0, "needs")
    put(new, "new alone", 30.0)
    wanted = {"both": 10.0, "then failed": 2.0, "old alone": 3.0, "new alone": 30.0}
    for order in (("old.sqlite", "new.sqlite"), ("new.sqlite", "old.sqlite")):
        out = f"out-{order[0]}"
        assert bench("merge", *order, "--store", out).code == 0
        with Store(tmp_path / out) as store:
            assert {result.key: result.outcome.values["psnr"] for result in store} == wanted
    assert (
        "2 of 3 results were new or newer; old.sqlite has 4."
        in bench("merge", "new.sqlite", "--store", "old.sqlite").out
    )


def test_damaged_and_foreign_files_are_refused_and_nothing_is_written(
    bench: Bench, tmp_path: Path
) -> None:
    put(tmp_path / "good.sqlite", "key", 1.0)
    with sqlite3.connect(tmp_path / "other.sqlite") as database:
        database.execute("CREATE TABLE people (name TEXT)")
    database.close()
    damaged = tmp_path / "damaged.sqlite"
    for number in range(20):
        put(damaged, f"key {number}", 1.0)
    content = bytearray(damaged.read_bytes())
    content[-8192:] = b"\xff" * 8192
    damaged.write_bytes(content)
    for name, sentence in {
        "other": "is a database, but no store",
        "damaged": "is damaged, or no store",
    }.items():
        refused = bench("merge", "good.sqlite", f"{name}.sqlite", "--store", "out.sqlite")
        assert (refused.code, sentence in refused.err) == (2, True), refused.err
        assert len(refused.err.strip().splitlines()) == 1
    assert not (tmp_path / "out.sqlite").exists()


def test_a_run_whose_time_is_over_ends_after_the_cell_under_way_and_goes_on(tmp_path: Path) -> None:
    cells = [cell(), cell(FGLA), cell(seed=1)]
    with Store(tmp_path / "store.sqlite") as store:
        begun = run(cells, Material(), store, minutes=1e-4)
        assert begun.measured + begun.left == 3
        assert begun.left > 0
        assert f"The time is over with {begun.left} left; the same command goes on." in str(begun)
        rest = run(cells, Material(), store, minutes=10)
        assert (rest.known, rest.measured, rest.left) == (begun.measured, begun.left, 0)


def test_only_the_attacks_asked_for() -> None:
    cells = [cell(), cell(FGLA), cell(seed=1)]
    assert of_attacks(cells, ["fgla"], []) == [cells[1]]
    assert of_attacks(cells, [], ["fgla"]) == [cells[0], cells[2]]
    with pytest.raises(UnsumError, match="no attack in these tables 'dlg'"):
        of_attacks(cells, ["dlg"], [])


def test_a_scheduler_that_ends_the_job_finds_one_whole_file(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM in the second cell: the store is closed, so that its one file can be copied, and the
    exit code says why."""

    def measured(of: Cell, material: Material) -> Outcome:
        if of.attack.name != "fgla":
            os.kill(os.getpid(), signal.SIGTERM)
        return Outcome("measured", {"psnr": float(material.threads)})

    monkeypatch.setattr(sys.modules["unsum_bench.run"], "measure", measured)
    before = signal.getsignal(signal.SIGTERM)
    ended = bench(*WORDS, "--store", "ended.sqlite")
    assert ended.code == 128 + signal.SIGTERM
    assert "ended.sqlite keeps what was measured, and the same command goes on" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["ended.sqlite"]
    assert signal.getsignal(signal.SIGTERM) == before
    with Store(tmp_path / "ended.sqlite", read_only=True) as store:
        assert list(store.statuses().values()) == ["measured"]
