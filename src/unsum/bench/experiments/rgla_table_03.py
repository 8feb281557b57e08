"""RGLA, table 3: which of its three objectives are needed."""

from __future__ import annotations

from unsum.bench.declare import Experiment, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import BY_OBJECTIVES


def name(objectives: tuple[str, ...]) -> str:
    return " + ".join(f"L_{part}" for part in objectives)


def grids(size: Size) -> tuple[Grid, ...]:
    attacks = []
    for parts in BY_OBJECTIVES:
        attacks.append(common.rgla(size, f"RGLA, {name(parts)}", objectives=parts))
        attacks.append(common.released(size, f"released RGLA, {name(parts)}", objectives=parts))
    attacks += [common.newton(size), common.EXACT]
    seeds = {"smoke": 1, "small": 2, "paper": 100}[size]
    return (Grid((common.RGLA_NETWORK[size],), tuple(attacks), seeds=seeds),)


EXPERIMENT = Experiment(
    name="rgla-3",
    title="RGLA, table 3: objectives, B = 8, distinct labels",
    paper="rgla",
    grids=grids,
    columns=common.FEATURES,
    published=tuple(
        Published(figure, {"attack": f"released RGLA, {name(parts)}"}) for parts, figure in BY_OBJECTIVES.items()
    ),
    published_title="published PSNR",
    deviations={
        size: (
            *common.DEVIATIONS[size],
            "Published figures stand beside the released code's objective, whose L_b has no effect, as in the paper's table.",
        )
        for size in common.DEVIATIONS
    },
    see=("../exact-features.md",),
)
