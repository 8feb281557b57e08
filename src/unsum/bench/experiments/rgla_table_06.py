"""RGLA, table 6: where its optimizer starts, and where it ends."""

from __future__ import annotations

from unsum.bench.declare import Experiment, Grid, Size
from unsum.bench.experiments import common

STARTS = ("randn", "rand", "zeros", "ones", "photos", "fgla")


def grids(size: Size) -> tuple[Grid, ...]:
    attacks = tuple(common.rgla(size, f"RGLA from {start}", start=start) for start in STARTS)
    seeds = {"smoke": 1, "small": 2, "paper": 100}[size]
    return (Grid((common.RGLA_NETWORK[size],), (*attacks, common.EXACT), seeds=seeds),)


EXPERIMENT = Experiment(
    name="rgla-6",
    title="RGLA, table 6: starts, B = 8, distinct labels (published: all end alike)",
    paper="rgla",
    grids=grids,
    columns=common.FEATURES,
    deviations=common.DEVIATIONS,
    see=("../exact-features.md",),
)
