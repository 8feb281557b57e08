"""The file of results: what it keeps, and what it refuses in one sentence."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from support.bench_cells import cell
from unsum import UnsumError
from unsum_bench.measure import Outcome
from unsum_bench.store import Store

OUTCOME = Outcome(
    "measured", {"psnr": 12.5}, seconds=1.0, cpu_seconds=0.5, peak_mb=100.0, picture=b"png"
)


def put(store: Store, key: str, outcome: Outcome = OUTCOME, declaration: str = "declared") -> None:
    store.put(key, declaration, cell().content(), outcome, {"code": "abc"})


def test_what_is_put_comes_back_whole(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        put(store, "key")
    with Store(tmp_path / "store.sqlite", read_only=True) as store:
        (found,) = store
        assert found.outcome == OUTCOME
        assert found.origin == {"code": "abc"}
        assert store.statuses() == {"key": "measured"}
        assert store.statuses().get("other") is None
        assert not Path(f"{store.path}-wal").exists()  # one file, that can be copied


def test_of_several_results_of_a_declaration_the_newest_that_worked_is_shown(
    tmp_path: Path,
) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        put(store, "old", Outcome("measured", {"psnr": 1.0}))
        put(store, "new", Outcome("measured", {"psnr": 2.0}))
        put(store, "broken", Outcome("failed"))
        put(store, "lacking", Outcome("needs"))
        newest = store.newest("declared")
        assert newest is not None
        assert newest.key == "new"


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(
        UnsumError, match=r"'.*store\.sqlite' is damaged, or no store of `unsum bench`"
    ):
        Store(path)


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        for number in range(200):
            put(store, f"key {number}")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(UnsumError, match="is damaged, or no store"), Store(path) as store:
        store.statuses()


def test_somebody_elses_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE people (name TEXT)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(UnsumError, match="is a database, but no store of `unsum bench`"):
        Store(path)
    assert path.read_bytes() == before


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(UnsumError, match="has format 99, and this unsum writes format 1"):
        Store(path)


def test_a_full_disk_is_a_sentence_and_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """SQLite itself is told that there is no more room, and answers as it does on a full disk."""
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        put(store, "first")
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(
            UnsumError, match=r"The disk is full, so the store .* takes no more cells; make room"
        ):
            put(store, "second", Outcome("measured", picture=b"x" * 1_000_000))
    with Store(path, read_only=True) as store:
        assert list(store.statuses()) == ["first"]


def test_a_folder_that_cannot_be_written_is_a_sentence() -> None:
    with pytest.raises(
        UnsumError,
        match="cannot be opened or made there; name one with --store in a folder that can be",
    ):
        Store("/proc/unsum-bench.sqlite")


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnsumError, match="There is no folder"):
        Store(tmp_path / "nowhere" / "store.sqlite")


def test_a_store_that_is_not_there_cannot_be_shown(tmp_path: Path) -> None:
    with pytest.raises(UnsumError, match=r"There is no store .*; run `unsum bench` first"):
        Store(tmp_path / "store.sqlite", read_only=True)


def test_a_store_that_only_is_read_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        put(store, "key")
    before = path.read_bytes()
    with Store(path, read_only=True) as store, pytest.raises(UnsumError, match="cannot be written"):
        put(store, "other")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["store.sqlite"]
