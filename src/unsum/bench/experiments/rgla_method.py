"""RGLA, tables 3 and 5 to 7: what its objectives, its estimated loss and its starts are good for."""

from __future__ import annotations

from unsum.bench.declare import Attack, Column, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import ACCURACIES, BY_OBJECTIVES, LOSS_ERRORS

STARTS = ("randn", "rand", "zeros", "ones", "photos", "fgla")


def _objectives(objectives: tuple[str, ...]) -> str:
    return " + ".join(f"L_{part}" for part in objectives)


def by_objectives(size: Size) -> tuple[Grid, ...]:
    attacks = []
    for parts in BY_OBJECTIVES:
        attacks.append(common.rgla(size, f"RGLA, {_objectives(parts)}", objectives=parts))
        attacks.append(common.released(size, f"released RGLA, {_objectives(parts)}", objectives=parts))
    attacks += [common.newton(size), common.EXACT]
    return (Grid((common.RGLA_NETWORK[size],), tuple(attacks), seeds=common.TWO[size]),)


TABLE_3 = common.TABLE(
    name="rgla-3",
    title="RGLA, table 3: objectives, B = 8, distinct labels",
    grids=by_objectives,
    columns=common.FEATURES,
    published=tuple(
        Published(figure, {"attack": f"released RGLA, {_objectives(parts)}"}) for parts, figure in BY_OBJECTIVES.items()
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


def _title(accuracy: float) -> str:
    return f"l̂ at an accuracy of {accuracy:.0%}"


def by_accuracy(size: Size) -> tuple[Grid, ...]:
    goals = ACCURACIES if size != "smoke" else ACCURACIES[2:4]
    batches = {"smoke": (8,), "small": (8, 256), "paper": (8, 256)}[size]
    attacks = tuple(
        Attack("l̂", (("accuracy", goal),), "labels", family="estimate", title=_title(goal)) for goal in goals
    )
    return (Grid((common.RGLA_NETWORK[size],), attacks, batches),)


TABLE_5 = common.TABLE(
    name="rgla-5",
    title="RGLA, table 5: the estimated loss, by the model's accuracy on its own photos",
    grids=by_accuracy,
    columns=(
        Column("accuracy", "accuracy", ".1%"),
        Column("mean_loss", "mean loss"),
        Column("loss_error", "mean |l̂ − l|", ".3f"),
        Column("loss_error_l2", "L2 over 100 batches"),
    ),
    published=tuple(
        Published(f"{figure:g}", {"batch": B, "attack": _title(goal)})
        for B, row in LOSS_ERRORS.items()
        for goal, figure in zip(ACCURACIES, row, strict=True)
    ),
    published_title="published L2",
    deviations={
        size: (
            *common.DEVIATIONS[size],
            "The model is a linear head trained on the photos' own features; the paper trained whole networks. Its L2 is taken "
            "as the root of the sum of 100 squares.",
        )
        for size in common.DEVIATIONS
    },
    see=("../exact-features.md",),
)


def by_start(size: Size) -> tuple[Grid, ...]:
    attacks = tuple(common.rgla(size, f"RGLA from {start}", start=start) for start in STARTS)
    return (Grid((common.RGLA_NETWORK[size],), (*attacks, common.EXACT), seeds=common.TWO[size]),)


TABLE_6 = common.TABLE(
    name="rgla-6",
    title="RGLA, table 6: starts, B = 8, distinct labels (published: all end alike)",
    grids=by_start,
    columns=common.FEATURES,
    see=("../exact-features.md",),
)


TABLE_7 = common.TABLE(
    name="rgla-7",
    title="RGLA, table 7: how soon each start arrives (published: zeros and FGLA soonest)",
    grids=by_start,
    columns=(
        Column("arrived", "steps to 10× the last loss", ".0f", "median"),
        Column("loss", "sum of losses at the end", ".1e", "median"),
        common.MEDIAN,
        common.SECONDS,
        common.PROCESSOR,
    ),
    see=("../exact-features.md",),
)
