"""RGLA, table 12: pruning, by the share of entries that it removes."""

from __future__ import annotations

from unsum.bench.declare import Experiment, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import BY_PRUNING


def grids(size: Size) -> tuple[Grid, ...]:
    defences = tuple(BY_PRUNING) if size != "smoke" else ("none", "prune:0.9")
    attacks = (common.EXACT, common.ADAPTIVE, common.rgla(size), common.FGLA)
    seeds = {"smoke": 1, "small": 2, "paper": 100}[size]
    return (Grid((common.RGLA_NETWORK[size],), attacks, defences=defences, seeds=seeds),)


EXPERIMENT = Experiment(
    name="rgla-12",
    title="RGLA, table 12: pruning, B = 8, distinct labels",
    paper="rgla",
    grids=grids,
    columns=common.PICTURES,
    published=tuple(
        Published(figure, {"defence": defence, "attack": name.upper()})
        for defence, row in BY_PRUNING.items()
        for name, figure in row.items()
    ),
    published_title="published PSNR",
    deviations=common.DEVIATIONS,
    see=("defences.md",),
)
