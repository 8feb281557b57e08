"""The store of results: one SQLite file, one transaction for each cell, readable while a run goes
on.

A run that is killed at any moment loses the cell that it was measuring and nothing else: a cell is
there whole or not at all.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unsum.errors import UnsumError
from unsum_bench.measure import Outcome, Status

FORMAT = 1  # of the tables below; a store of another one is refused, never guessed at
_MARK = 0x756E7375  # SQLite's application id: "unsu"
_TABLES = """
CREATE TABLE cells (
  key TEXT PRIMARY KEY, declaration TEXT NOT NULL, cell TEXT NOT NULL, status TEXT NOT NULL,
  figures TEXT NOT NULL,
  sentence TEXT NOT NULL, traceback TEXT NOT NULL, seconds REAL NOT NULL, cpu_seconds REAL NOT NULL,
  peak_mb REAL NOT NULL,
  origin TEXT NOT NULL, finished TEXT NOT NULL, picture BLOB
) WITHOUT ROWID;
CREATE INDEX by_declaration ON cells (declaration, finished);
"""
_ROW = (
    "key, declaration, cell, status, figures, sentence, traceback, seconds, cpu_seconds, peak_mb, "
    "origin, finished, picture"
)
_PUT = f"INSERT OR REPLACE INTO cells ({_ROW}) VALUES ({', '.join('?' * len(_ROW.split()))})"
_PATIENCE = 30.0  # seconds to wait for another process that writes


@dataclass(frozen=True)
class Result:
    """A cell's outcome, and where it comes from: code version, data, hardware, command."""

    key: str
    declaration: str
    outcome: Outcome
    origin: Mapping[str, str]
    finished: str


class Store:
    """Open with `Store(path)` to read and write; `Store(path, read_only=True)` for a store that is
    only shown."""

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path = Path(path)
        if read_only and not self.path.is_file():
            raise UnsumError(
                f"There is no store {str(self.path)!r}; run `unsum bench` first, or name another "
                "with --store."
            )
        if not read_only and not self.path.parent.is_dir():
            raise UnsumError(
                f"There is no folder {str(self.path.parent)!r} for the store; make it first."
            )
        flag = "mode=rwc"
        # it may lie in a folder that cannot be written: SQLite then must not look for its own side
        # files
        if read_only:
            flag = "mode=ro" if Path(f"{self.path}-wal").exists() else "immutable=1"
        address = f"{self.path.absolute().as_uri()}?{flag}"
        with _sentences(self.path):
            self._database = sqlite3.connect(
                address, uri=True, timeout=_PATIENCE, isolation_level=None
            )
            self._check(read_only)

    def _check(self, read_only: bool) -> None:
        """Refuse files that are not ours; make the tables of a new one."""
        database = self._database
        mark, version = (
            database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        empty = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if empty and mark == 0 and not read_only:
            # a cell has about that: larger pages would stay half empty
            database.execute("PRAGMA page_size = 1024")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("BEGIN IMMEDIATE")
            for statement in filter(str.strip, _TABLES.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {_MARK}")
            database.execute(f"PRAGMA user_version = {FORMAT}")
            database.execute("COMMIT")
        elif mark != _MARK:
            raise UnsumError(
                f"{str(self.path)!r} is a database, but no store of `unsum bench`; name another "
                "with --store."
            )
        elif version != FORMAT:
            raise UnsumError(
                f"The store {str(self.path)!r} has format {version}, and this unsum writes format "
                f"{FORMAT}; name a new one with --store, or use the unsum that made it."
            )
        if not read_only:
            database.execute("PRAGMA synchronous = FULL")

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with _sentences(self.path):
            return self._database.execute(query, values).fetchall()

    def statuses(self) -> dict[str, Status]:
        """The status of every cell, by key."""
        return dict(self._all("SELECT key, status FROM cells"))

    def put(
        self,
        key: str,
        declaration: str,
        cell: Mapping[str, Any],
        outcome: Outcome,
        origin: Mapping[str, str],
    ) -> None:
        """One cell, whole, in one transaction; an earlier result under the same key is replaced."""
        self._all(
            _PUT,
            *(
                key,
                declaration,
                json.dumps(cell, sort_keys=True),
                outcome.status,
                json.dumps(outcome.values),
            ),
            *(
                outcome.sentence,
                outcome.traceback,
                outcome.seconds,
                outcome.cpu_seconds,
                outcome.peak_mb,
            ),
            *(
                json.dumps(dict(origin), sort_keys=True),
                datetime.now(UTC).isoformat(timespec="milliseconds"),
            ),
            outcome.picture,
        )

    def rows(self) -> list[tuple[Any, ...]]:
        """Every row as it is stored, for another store; a file that is damaged anywhere is
        refused."""
        with _sentences(self.path):
            complaint = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if complaint != "ok":
                raise sqlite3.DatabaseError(complaint.splitlines()[-1])
        return self._all(f"SELECT {_ROW} FROM cells")

    def take(self, rows: Iterable[tuple[Any, ...]]) -> int:
        """Rows of other stores, all or none; of one key the newest stays, a measured one before any
        other. How many came in."""
        own = self._all("SELECT key, status, finished FROM cells")
        ranks = {key: (status == "measured", finished) for key, status, finished in own}
        better: dict[str, tuple[Any, ...]] = {}
        for row in rows:
            key, _, _, status, *_, finished, _ = row
            rank = (status == "measured", finished)
            if rank > ranks.get(key, (False, "")):
                better[key], ranks[key] = row, rank
        with _sentences(self.path):
            self._database.execute("BEGIN IMMEDIATE")
            with self._database:  # commits, or rolls back what failed
                self._database.executemany(_PUT, better.values())
        return len(better)

    def declarations(self, status: Status | None = None) -> set[str]:
        """Every declaration that the store has anything for, or a result of this status."""
        rows = self._all(
            "SELECT DISTINCT declaration FROM cells WHERE ? IN (status, '')", status or ""
        )
        return {row[0] for row in rows}

    def newest(self, declaration: str) -> Result | None:
        """The last result of a declared cell, whatever code and data made it; a measured one before
        any other."""
        order = "ORDER BY status != 'measured', finished DESC LIMIT 1"
        rows = self._all(f"SELECT {_ROW} FROM cells WHERE declaration = ? {order}", declaration)
        return _result(rows[0]) if rows else None

    def __iter__(self) -> Iterator[Result]:
        return map(_result, self._all(f"SELECT {_ROW} FROM cells ORDER BY finished"))

    def close(self) -> None:
        """Fold SQLite's side files into the one file, so that it can be copied."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _result(row: tuple[Any, ...]) -> Result:
    (
        key,
        declaration,
        _,
        status,
        figures,
        sentence,
        trace,
        seconds,
        cpu,
        peak,
        origin,
        finished,
        picture,
    ) = row
    outcome = Outcome(status, json.loads(figures), sentence, trace, seconds, cpu, peak, picture)
    return Result(key, declaration, outcome, json.loads(origin), finished)


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """What SQLite complains about, as one sentence each."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UnsumError(_operational(str(error), path)) from error
    except sqlite3.DatabaseError as error:
        raise UnsumError(
            f"{str(path)!r} is damaged, or no store of `unsum bench` ({error}); move it away, or "
            "name another with --store."
        ) from error


def _operational(reason: str, path: Path) -> str:
    if "full" in reason:
        return (
            f"The disk is full, so the store {str(path)!r} takes no more cells; make room and give "
            "the same command again."
        )
    if "readonly" in reason or "read-only" in reason:
        return (
            f"The store {str(path)!r} cannot be written; name one with --store in a folder of "
            "yours."
        )
    if "unable to open" in reason:
        return (
            f"The store {str(path)!r} cannot be opened or made there; name one with --store in a "
            "folder that can be written."
        )
    if "locked" in reason:
        return (
            f"Another process has been writing to {str(path)!r} for {_PATIENCE:.0f} s; wait for "
            "it, or name another store."
        )
    return f"The store {str(path)!r} cannot be used: {reason}."
