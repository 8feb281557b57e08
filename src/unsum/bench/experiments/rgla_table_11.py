"""RGLA, table 11: larger photos."""

from __future__ import annotations

from dataclasses import replace

from unsum.bench.declare import Experiment, Grid, Published, Size
from unsum.bench.experiments import common


def grids(size: Size) -> tuple[Grid, ...]:
    side = {"smoke": 24, "small": 192, "paper": 336}[size]
    seeds = {"smoke": 1, "small": 2, "paper": 100}[size]
    usual = common.RGLA_NETWORK[size]
    attacks = (common.EXACT, common.rgla(size), common.FGLA)
    return (Grid((usual, replace(usual, size=side)), attacks, same=(0, 8), seeds=seeds),)


EXPERIMENT = Experiment(
    name="rgla-11",
    title="RGLA, table 11: larger photos, B = 8",
    paper="rgla",
    grids=grids,
    columns=common.PICTURES,
    published=(Published("somewhat below 224²", {"size": 336, "attack": "RGLA"}),),
    published_title="published PSNR",
    deviations={
        **common.DEVIATIONS,
        "small": (
            common.SMALL,
            "192² in the place of 336²; the embedded inverse draws 128² alone, so larger photos have no PSNR.",
        ),
        "paper": (common.OWN_INVERSE, "The figures of the table at 336² are not in our notes of the paper."),
    },
    see=("../pictures.md",),
)
