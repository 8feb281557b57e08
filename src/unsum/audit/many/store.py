"""The rows of many updates in one SQLite file: one transaction each, so a run that is killed loses
what it was at and no more."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unsum.audit.finding import ClientFinding
from unsum.errors import UnsumError, optional
from unsum.files.writing import write_whole

_TABLES = """
CREATE TABLE IF NOT EXISTS about (setting TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS findings (
  round INTEGER NOT NULL, client TEXT NOT NULL, fingerprint TEXT NOT NULL, outcome TEXT NOT NULL,
  state TEXT NOT NULL,
  exact INTEGER NOT NULL, leakage REAL, predicted_error REAL, batch_size INTEGER,
  method TEXT NOT NULL, seconds REAL NOT NULL,
  reason TEXT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (round, client)
) WITHOUT ROWID;
"""
_COLUMNS = (
    *("round", "client", "outcome", "state", "exact", "leakage"),
    *("predicted_error", "batch_size", "method", "seconds", "reason"),
)
_ROWS = 4096  # of a Parquet file that are in memory at a time
_PATIENCE = 30.0  # seconds to wait for another process that writes


class Findings:
    """What was found of every client in every round, in the order of rounds and clients; `path`
    None keeps it in memory.

    Iterate over it, or read the table `findings` with any SQLite tool: a column for every figure,
    and `content` as JSON.

    Examples:
        >>> import torch, unsum
        >>> model = torch.nn.Linear(6, 4)
        >>> update = unsum.capture(model, torch.rand(2, 6), torch.tensor([0, 3]))
        >>> findings = unsum.attack_many(
        ...     model, [unsum.Arrived("hospital-3", update, round=7)], processes=1
        ... )
        >>> [(finding.client, finding.round) for finding in findings]
        [('hospital-3', 7)]
    """

    def __init__(self, path: str | Path | None = None, setting: str = "") -> None:
        self.path = None if path is None else Path(path)
        with self._sentences():
            self._database = sqlite3.connect(
                str(self.path or ":memory:"), timeout=_PATIENCE, isolation_level=None
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            # A killed process loses nothing so; a machine that loses its power may lose the last
            # rows, which are made again.
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.executescript(_TABLES)
            found = self._database.execute("SELECT setting FROM about").fetchone()
        if found is None:
            self._database.execute("INSERT INTO about VALUES (?)", (setting,))
        elif setting and found[0] != setting:
            raise UnsumError(
                f"{str(self.path)!r} holds findings of another model or attack ({found[0]}); name "
                "another file, or move it away."
            )

    def put(self, finding: ClientFinding, fingerprint: str) -> None:
        content = finding.to_dict()
        row = (fingerprint, json.dumps(content), *(content[name] for name in _COLUMNS))
        with self._sentences():
            self._database.execute(
                f"INSERT OR REPLACE INTO findings (fingerprint, content, {', '.join(_COLUMNS)}) "
                f"VALUES ({', '.join('?' * len(row))})",
                row,
            )

    def has(self, number: int, client: str, fingerprint: str) -> bool:
        """Whether this very update has its row."""
        asked = (number, client, fingerprint)
        query = "SELECT 1 FROM findings WHERE round = ? AND client = ? AND fingerprint = ?"
        return self._database.execute(query, asked).fetchone() is not None

    def counts(self) -> dict[str, int]:
        """How many findings of every state: leaks, unproven, not decidable."""
        return dict(
            self._database.execute("SELECT state, count(*) FROM findings GROUP BY state").fetchall()
        )

    def largest(self, count: int) -> list[ClientFinding]:
        """Those of the largest leakage, certain ones before others, and labels alone last."""
        query = (
            "SELECT content FROM findings WHERE leakage IS NOT NULL OR state = 'leaks' "
            "ORDER BY exact DESC, leakage DESC LIMIT ?"
        )
        return [
            ClientFinding.from_dict(json.loads(row))
            for (row,) in self._database.execute(query, (count,))
        ]

    def to_parquet(self, path: str | Path) -> None:
        """Write the table `findings` as Parquet, some thousand rows at a time; needs pyarrow
        (`unsum[datasets]`)."""
        arrow = optional("pyarrow", "datasets", "Parquet needs pyarrow")
        parquet = optional("pyarrow.parquet", "datasets", "Parquet needs pyarrow")
        kinds = {"INTEGER": arrow.int64(), "REAL": arrow.float64(), "TEXT": arrow.string()}
        columns = self._database.execute("PRAGMA table_info(findings)").fetchall()
        schema = arrow.schema([(name, kinds[kind]) for _, name, kind, *_ in columns])

        def write(part: Path) -> None:
            rows = self._database.execute("SELECT * FROM findings ORDER BY round, client")
            with parquet.ParquetWriter(part, schema) as file:
                while some := rows.fetchmany(_ROWS):
                    file.write_table(
                        arrow.table(
                            [list(column) for column in zip(*some, strict=True)], schema=schema
                        )
                    )

        write_whole(Path(path), write)

    def __len__(self) -> int:
        return int(self._database.execute("SELECT count(*) FROM findings").fetchone()[0])

    def __iter__(self) -> Iterator[ClientFinding]:
        for (content,) in self._database.execute(
            "SELECT content FROM findings ORDER BY round, client"
        ):
            yield ClientFinding.from_dict(json.loads(content))

    def __repr__(self) -> str:
        return (
            f"Findings({len(self)} updates: "
            f"{', '.join(f'{n} {state}' for state, n in self.counts().items())})"
        )

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise UnsumError(
                f"The findings cannot be kept in {str(self.path)!r} ({error}); name another file, "
                "or make room."
            ) from error
