"""From declarations to the cells of a run: every table asked for, at one size, with plug-ins in every one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from unsum.bench.declare import Attack, Cell, Experiment, Grid, Size
from unsum.bench.experiments import EXPERIMENTS
from unsum.bench.experiments.field import strength
from unsum.defend import DEFENSES
from unsum.errors import unknown_name
from unsum.match import MATCHERS
from unsum.registry import from_outside
from unsum.separate import SEPARATORS


def chosen(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names; all of them where none is named."""
    for name in names:
        if name not in EXPERIMENTS:
            raise unknown_name("table", name, EXPERIMENTS)
    return [EXPERIMENTS[name] for name in names or EXPERIMENTS]


def cells_of(experiment: Experiment, size: Size) -> list[Cell]:
    """The cells of one table in its own order, each once."""
    return list(dict.fromkeys(cell for grid in experiment.grids(size) for cell in with_plugins(grid).cells()))


def cells_of_all(experiments: Iterable[Experiment], size: Size) -> list[Cell]:
    """The cells of several tables, each once: what two tables share is measured once.

    First batches come first, so that a run which is stopped early has something for every row.
    """
    every = dict.fromkeys(cell for experiment in experiments for cell in cells_of(experiment, size))
    return sorted(every, key=lambda cell: cell.seed)


def with_plugins(grid: Grid) -> Grid:
    """The grid with third-party attacks and defenses beside those that it names."""
    families = {attack.family for attack in grid.attacks}
    named = {attack.name for attack in grid.attacks}
    plugged = tuple(attack for attack in plugin_attacks() if attack.name not in named and "attack" in families)
    stems = {defense.partition(":")[0] for defense in grid.defenses}
    strengths = tuple(text for text in plugin_defenses() if text.partition(":")[0] not in stems)
    return replace(grid, attacks=grid.attacks + plugged, defenses=grid.defenses + strengths)


def plugin_attacks() -> list[Attack]:
    """Attacks of other packages, granted the labels, as most published ones must be."""
    outside = [entry.name for registry in (SEPARATORS, MATCHERS) for entry in registry if from_outside(entry)]
    return [Attack(name, granted="labels") for name in outside]


def plugin_defenses() -> list[str]:
    """Defenses of other packages, at the strength that they give as an example."""
    return [strength(entry.name, entry.method) for entry in DEFENSES if from_outside(entry)]
