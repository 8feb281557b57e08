"""RGLA, tables 2 and 12: what noise, clipping and pruning leave, attack by attack."""

from __future__ import annotations

from unsum.bench.declare import Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import BY_DEFENSE, BY_PRUNING


def by_defense(size: Size) -> tuple[Grid, ...]:
    separators = (common.EXACT, common.ADAPTIVE, common.rgla(size), common.FGLA)
    network, slow = common.RGLA_NETWORK[size], common.MATCHING_NETWORK[size]
    defenses = tuple(BY_DEFENSE) if size != "smoke" else ("noise:0.01", "clip:4", "prune:0.9")
    return (
        Grid((network,), separators, defenses=defenses, seeds=common.TWO[size]),
        Grid((slow,), common.matching(size), defenses=defenses, seeds=common.FEW[size]),
    )


TABLE_2 = common.TABLE(
    name="rgla-2",
    title="RGLA, table 2: defenses, B = 8, distinct labels",
    grids=by_defense,
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


def by_pruning(size: Size) -> tuple[Grid, ...]:
    defenses = tuple(BY_PRUNING) if size != "smoke" else ("none", "prune:0.9")
    attacks = (common.EXACT, common.ADAPTIVE, common.rgla(size), common.FGLA)
    return (Grid((common.RGLA_NETWORK[size],), attacks, defenses=defenses, seeds=common.TWO[size]),)


TABLE_12 = common.TABLE(
    name="rgla-12",
    title="RGLA, table 12: pruning, B = 8, distinct labels",
    grids=by_pruning,
    columns=common.PICTURES,
    published=tuple(
        Published(figure, {"defense": defense, "attack": name.upper()})
        for defense, row in BY_PRUNING.items()
        for name, figure in row.items()
    ),
    published_title="published PSNR",
    see=("../defenses.md",),
)
