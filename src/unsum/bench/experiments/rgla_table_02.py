"""RGLA, table 2: what noise, clipping and pruning leave, attack by attack."""

from __future__ import annotations

from unsum.bench.declare import Experiment, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import BY_DEFENSE


def grids(size: Size) -> tuple[Grid, ...]:
    separators = (common.EXACT, common.ADAPTIVE, common.rgla(size), common.FGLA)
    network, slow = common.RGLA_NETWORK[size], common.MATCHING_NETWORK[size]
    seeds = {"smoke": 1, "small": 2, "paper": 100}[size]
    defenses = tuple(BY_DEFENSE) if size != "smoke" else ("noise:0.01", "clip:4", "prune:0.9")
    return (
        Grid((network,), separators, defenses=defenses, seeds=seeds),
        Grid((slow,), common.matching(size), defenses=defenses, seeds=common.FEW[size]),
    )


EXPERIMENT = Experiment(
    name="rgla-2",
    title="RGLA, table 2: defenses, B = 8, distinct labels",
    paper="rgla",
    grids=grids,
    columns=common.PICTURES,
    published=tuple(
        Published(figure, {"defense": defense, "attack": name.upper()})
        for defense, row in BY_DEFENSE.items()
        for name, figure in row.items()
    ),
    published_title="published PSNR / SSIM / LPIPS",
    deviations=common.WITH_MATCHING,
    see=("../defenses.md", "../pictures.md"),
)
