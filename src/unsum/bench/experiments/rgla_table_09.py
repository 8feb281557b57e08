"""RGLA, table 9: the error of the logits, by batch size."""

from __future__ import annotations

from unsum.bench.declare import Experiment, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import LOGITS_BY_BATCH


def grids(size: Size) -> tuple[Grid, ...]:
    attacks = (common.EXACT, common.newton(size), common.rgla(size), common.released(size))
    seeds = {"smoke": 1, "small": 1, "paper": 100}[size]
    return (Grid((common.RGLA_NETWORK[size],), attacks, common.BATCHES[size], seeds=seeds),)


EXPERIMENT = Experiment(
    name="rgla-9",
    title="RGLA, table 9: logits by batch size, distinct labels",
    paper="rgla",
    grids=grids,
    columns=common.FEATURES,
    published=tuple(Published(figure, {"batch": B, "attack": "RGLA"}) for B, figure in LOGITS_BY_BATCH.items()),
    published_title="published ‖Ŷ′−Ŷ‖²",
    deviations=common.DEVIATIONS,
    see=("../exact-features.md",),
)
