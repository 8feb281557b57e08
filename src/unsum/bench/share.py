"""A share of a run: one of N processes that know nothing of each other (a job array, or the cores of one machine)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from unsum.bench.declare import Cell
from unsum.errors import UnsumError, unknown_name

Shard = tuple[int, int]  # (I, N): the I-th of N, from 1


def parse_shard(text: str) -> Shard:
    """`I/N`.

    >>> parse_shard("2/8")
    (2, 8)
    """
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise UnsumError(f"--shard reads I/N with I from 1 to N, as in 2/8, not {text!r}.")
    return int(found[1]), int(found[2])


def share(cells: Iterable[Cell], shard: Shard) -> list[Cell]:
    """The cells of one shard in their own order; every cell is in exactly one shard, whatever a store has.

    Cells are dealt out like cards after similar ones were put together, so that no shard gets all the slow ones.
    """
    number, count = shard
    listed = list(cells)
    mine = set(sorted(listed, key=_kind)[number - 1 :: count])
    return [cell for cell in listed if cell in mine]


def _kind(cell: Cell) -> str:
    content = cell.content()
    order = ("network", "attack", "batch", "same", "labels", "defense", "data", "draws", "pictures", "seed")
    return json.dumps([content[name] for name in order])


def of_attacks(cells: Iterable[Cell], wanted: Sequence[str], unwanted: Sequence[str]) -> list[Cell]:
    """The cells of these attacks alone (of all where none is named), without those of others."""
    listed = list(cells)
    names = list(dict.fromkeys(cell.attack.name for cell in listed))
    for name in (*wanted, *unwanted):
        if name not in names:
            raise unknown_name("attack in these tables", name, names)
    return [c for c in listed if (not wanted or c.attack.name in wanted) and c.attack.name not in unwanted]
