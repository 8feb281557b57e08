"""A table out of a file, CSV or Parquet: read in pieces and as text, so that a million rows take
little memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from unsum.errors import UnsumError, first_line, optional, shown

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
_PIECE = 4096  # rows at a time
_SNIFFED = 1 << 16  # characters that the delimiter is guessed from
_DELIMITERS = ",;\t|"
_MOST_COLUMNS = 10_000  # a wider table is a matrix that lost its header, or no table

Piece = Sequence[Sequence[str]]


def is_table(data: object) -> bool:
    """Whether data are named like a table's file."""
    return isinstance(data, str | Path) and Path(str(data)).suffix.lower() in TABLE_SUFFIXES


class TableFile:
    """The names of a table's columns, and its rows as text: the empty string where Parquet has
    nothing."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UnsumError(f"There is no file {str(path)!r}.")
        self.path, self.parquet = path, path.suffix.lower() == ".parquet"
        self.names = self._parquet_names() if self.parquet else self._csv_names()
        twice = next((name for name in self.names if self.names.count(name) > 1), None)
        if twice is not None:
            raise UnsumError(
                f"{path.name!r} has two columns called {shown(twice)}; rename one of them."
            )
        if not 2 <= len(self.names) <= _MOST_COLUMNS:
            raise UnsumError(
                f"{path.name!r} has {len(self.names):,} columns; a table needs 2 to "
                f"{_MOST_COLUMNS:,}, named in its first line."
            )

    def pieces(self) -> Iterator[Piece]:
        """Some thousand rows at a time."""
        if self.parquet:
            return self._parquet_pieces()
        rows = self._csv_rows()
        return iter(lambda: list(islice(rows, _PIECE)), [])

    def rows(self, places: Sequence[int]) -> list[Sequence[str]]:
        """The rows with these numbers, counted from 0, in the order of `places`."""
        wanted, found, start = sorted(set(places)), dict[int, Sequence[str]](), 0
        for piece in self.pieces():
            found |= {
                place: piece[place - start]
                for place in wanted
                if start <= place < start + len(piece)
            }
            start += len(piece)
            if start > wanted[-1]:
                break
        return [found[place] for place in places]

    def line(self, row: int) -> str:
        """Where a row stands, in words."""
        # the first line names the columns
        return f"row {row + 1}" if self.parquet else f"line {row + 2}"

    def _csv_names(self) -> list[str]:
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                first = file.read(_SNIFFED).partition("\n")[0]
                self._delimiter = max(_DELIMITERS, key=first.count)
                file.seek(0)
                names = next(csv.reader(file, delimiter=self._delimiter), [])
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise self._unreadable(error) from error
        return [name.strip() or f"column {place + 1}" for place, name in enumerate(names)]

    def _csv_rows(self) -> Iterator[list[str]]:
        width = len(self.names)
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, delimiter=self._delimiter)
                next(reader, None)
                for cells in reader:
                    if len(cells) == width:
                        yield cells
                    elif cells:  # csv gives nothing for an empty line
                        raise UnsumError(
                            f"Line {reader.line_num} of {self.path.name!r} has {len(cells)} cells "
                            f"and the first line {width}; put quotes around cells that hold the "
                            "delimiter."
                        )
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise self._unreadable(error) from error

    def _parquet_names(self) -> list[str]:
        parquet = optional("pyarrow.parquet", "datasets", "Parquet needs pyarrow")
        try:
            return [str(name) for name in parquet.ParquetFile(self.path).schema_arrow.names]
        except Exception as error:  # pyarrow raises nearly anything on a damaged file
            raise self._unreadable(error) from error

    def _parquet_pieces(self) -> Iterator[Piece]:
        parquet = optional("pyarrow.parquet", "datasets", "Parquet needs pyarrow")
        try:
            for batch in parquet.ParquetFile(self.path).iter_batches(_PIECE):
                columns = [
                    ["" if value is None else str(value) for value in column.to_pylist()]
                    for column in batch.columns
                ]
                yield list(zip(*columns, strict=True))
        except Exception as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> UnsumError:
        kind = "Parquet" if self.parquet else "CSV in UTF-8"
        return UnsumError(f"{self.path.name!r} cannot be read as {kind}: {first_line(error)}.")
