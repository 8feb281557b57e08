"""RGLA, table 12: pruning, by the share of entries that it removes."""

from __future__ import annotations

from unsum.bench.declare import Experiment, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import BY_PRUNING


def grids(size: Size) -> tuple[Grid, ...]:
    defenses = tuple(BY_PRUNING) if size != "smoke" else ("none", "prune:0.9")
    attacks = (common.EXACT, common.ADAPTIVE, common.rgla(size), common.FGLA)
    seeds = {"smoke": 1, "small": 2, "paper": 100}[size]
    return (Grid((common.RGLA_NETWORK[size],), attacks, defenses=defenses, seeds=seeds),)


EXPERIMENT = Experiment(
    name="rgla-12",
    title="RGLA, table 12: pruning, B = 8, distinct labels",
    paper="rgla",
    grids=grids,
    columns=common.PICTURES,
    published=tuple(
        Published(figure, {"defense": defense, "attack": name.upper()})
        for defense, row in BY_PRUNING.items()
        for name, figure in row.items()
    ),
    published_title="published PSNR",
    deviations=common.DEVIATIONS,
    see=("../defenses.md",),
)
