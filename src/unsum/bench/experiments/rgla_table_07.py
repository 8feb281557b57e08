"""RGLA, table 7: how soon each start arrives; the cells of table 6."""

from __future__ import annotations

from unsum.bench.declare import Column, Experiment
from unsum.bench.experiments import common, rgla_table_06

EXPERIMENT = Experiment(
    name="rgla-7",
    title="RGLA, table 7: how soon each start arrives (published: zeros and FGLA soonest)",
    paper="rgla",
    grids=rgla_table_06.grids,
    columns=(
        Column("arrived", "steps to 10× the last loss", ".0f", "median"),
        Column("loss", "sum of losses at the end", ".1e", "median"),
        common.MEDIAN,
        common.SECONDS,
        common.PROCESSOR,
    ),
    deviations=common.DEVIATIONS,
    see=("../exact-features.md",),
)
