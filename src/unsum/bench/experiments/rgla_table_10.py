"""RGLA, table 10: pictures by batch size, and its row with labels by iLRG."""

from __future__ import annotations

from dataclasses import replace

from unsum.bench.declare import Attack, Experiment, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import FGLA_BY_BATCH, RGLA_BY_BATCH, RGLA_WITH_ILRG


def with_ilrg(size: Size) -> Attack:
    return replace(common.rgla(size), granted="batch size", rule="ilrg", title="RGLA, labels by iLRG")


def grids(size: Size) -> tuple[Grid, ...]:
    network = (common.RGLA_NETWORK[size],)
    attacks = (common.EXACT, common.rgla(size), common.FGLA)
    seeds = {"smoke": 1, "small": 1, "paper": 100}[size]
    return (
        Grid(network, attacks, common.BATCHES[size], seeds=seeds),
        Grid(network, (with_ilrg(size),), (8,), seeds=seeds),
    )


EXPERIMENT = Experiment(
    name="rgla-10",
    title="RGLA, table 10: batch size, distinct labels",
    paper="rgla",
    grids=grids,
    columns=common.PICTURES,
    published=(
        *(Published(figure, {"batch": B, "attack": "RGLA"}) for B, figure in RGLA_BY_BATCH.items()),
        *(Published(figure, {"batch": B, "attack": "FGLA"}) for B, figure in FGLA_BY_BATCH.items()),
        Published(RGLA_WITH_ILRG, {"batch": 8, "attack": "RGLA, labels by iLRG"}),
    ),
    published_title="published PSNR / SSIM / LPIPS",
    deviations={
        **common.DEVIATIONS,
        "small": (common.SMALL, "Batches end at 64, because 128 is above C = 100; one batch of each size."),
    },
    see=("../pictures.md", "../exact-features.md"),
)
