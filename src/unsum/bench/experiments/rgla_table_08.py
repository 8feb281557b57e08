"""RGLA, table 8: k of 8 labels are the same."""

from __future__ import annotations

from unsum.bench.declare import Experiment, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import FGLA_BY_DUPLICATES, MATCHING_BY_DUPLICATES, RGLA_BY_DUPLICATES


def grids(size: Size) -> tuple[Grid, ...]:
    same = {"smoke": (0, 4), "small": (0, 2, 4, 6, 8), "paper": (0, 2, 4, 6, 8)}[size]
    attacks = (common.EXACT, common.newton(size), common.rgla(size), common.released(size), common.FGLA)
    ends = (same[0], same[-1])
    return (
        Grid((common.RGLA_NETWORK[size],), attacks, same=same, seeds=common.SEEDS[size]),
        Grid((common.MATCHING_NETWORK[size],), common.matching(size), same=ends, seeds=common.FEW[size]),
    )


EXPERIMENT = Experiment(
    name="rgla-8",
    title="RGLA, table 8: duplicate labels, B = 8",
    paper="rgla",
    grids=grids,
    columns=common.PICTURES,
    published=(
        *(Published(figure, {"same": k, "attack": "RGLA"}) for k, figure in RGLA_BY_DUPLICATES.items()),
        *(Published(figure, {"same": k, "attack": "FGLA"}) for k, figure in FGLA_BY_DUPLICATES.items()),
        *(
            Published(figure, {"same": k, "attack": name.upper()})
            for name, row in MATCHING_BY_DUPLICATES.items()
            for k, figure in row.items()
        ),
    ),
    published_title="published PSNR",
    deviations=common.WITH_MATCHING,
    see=("../exact-features.md", "matching.md", "../pictures.md"),
)
