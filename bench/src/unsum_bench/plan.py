"""From declarations to the cells of a run: every table asked for, at one size, with plug-ins in
every one of them.

A run may be shared by N processes that know nothing of each other (a job array, or the cores of one
machine).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from unsum.defend import DEFENSES
from unsum.errors import UnsumError, check_name
from unsum.match import MATCHERS
from unsum.registry import from_outside
from unsum.separate import SEPARATORS
from unsum_bench.declare import Attack, Cell, Experiment, Grid, Size
from unsum_bench.experiments import EXPERIMENTS
from unsum_bench.experiments.field import strength

Shard = tuple[int, int]  # (I, N): the I-th of N, from 1


def chosen(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names; all of them where none is named."""
    for name in names:
        check_name("table", name, EXPERIMENTS)
    return [EXPERIMENTS[name] for name in names or EXPERIMENTS]


def cells_of(experiment: Experiment, size: Size) -> list[Cell]:
    """The cells of one table in its own order, each once."""
    return list(
        dict.fromkeys(
            cell for grid in experiment.grids(size) for cell in with_plugins(grid).cells()
        )
    )


def cells_of_all(experiments: Iterable[Experiment], size: Size) -> list[Cell]:
    """The cells of several tables, each once: what two tables share is measured once.

    First batches come first, so that a run which is stopped early has something for every row.
    """
    every = dict.fromkeys(cell for experiment in experiments for cell in cells_of(experiment, size))
    return sorted(every, key=lambda cell: cell.seed)


def with_plugins(grid: Grid) -> Grid:
    """The grid with third-party attacks and defenses beside those that it names.

    Attacks are granted the labels, as most published ones must be; defenses have the strength that
    they give as an example.
    """
    outside = [
        entry.name
        for registry in (SEPARATORS, MATCHERS)
        for entry in registry
        if from_outside(entry)
    ]
    named = {attack.name for attack in grid.attacks}
    attacks = any(attack.family == "attack" for attack in grid.attacks)
    plugged = tuple(
        Attack(name, granted="labels") for name in outside if attacks and name not in named
    )
    stems = {defense.partition(":")[0] for defense in grid.defenses}
    added = [entry for entry in DEFENSES if from_outside(entry) and entry.name not in stems]
    strengths = tuple(strength(entry.name, entry.method) for entry in added)
    return replace(grid, attacks=grid.attacks + plugged, defenses=grid.defenses + strengths)


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
    """The cells of one shard in their own order; every cell is in exactly one shard, whatever a
    store has.

    Cells are dealt out like cards after similar ones were put together, so that no shard gets all
    the slow ones.
    """
    number, count = shard
    listed = list(cells)
    order = (
        "network",
        "attack",
        "batch",
        "same",
        "labels",
        "defense",
        "data",
        "draws",
        "pictures",
        "seed",
    )
    kinds = {
        cell: json.dumps([cell.random_labels, *(cell.content()[name] for name in order)])
        for cell in listed
    }
    mine = set(sorted(listed, key=kinds.__getitem__)[number - 1 :: count])
    return [cell for cell in listed if cell in mine]


def of_attacks(cells: Iterable[Cell], wanted: Sequence[str], unwanted: Sequence[str]) -> list[Cell]:
    """The cells of these attacks alone (of all where none is named), without those of others."""
    listed = list(cells)
    names = list(dict.fromkeys(cell.attack.name for cell in listed))
    for name in (*wanted, *unwanted):
        check_name("attack in these tables", name, names)
    return [
        c
        for c in listed
        if (not wanted or c.attack.name in wanted) and c.attack.name not in unwanted
    ]
