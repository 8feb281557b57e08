"""RGLA, table 5: the error of the estimated loss, by the accuracy of the model."""

from __future__ import annotations

from unsum.bench.declare import Attack, Column, Experiment, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import ACCURACIES, LOSS_ERRORS


def title(accuracy: float) -> str:
    return f"l̂ at an accuracy of {accuracy:.0%}"


def grids(size: Size) -> tuple[Grid, ...]:
    goals = ACCURACIES if size != "smoke" else ACCURACIES[2:4]
    batches = {"smoke": (8,), "small": (8, 256), "paper": (8, 256)}[size]
    attacks = tuple(
        Attack("l̂", (("accuracy", goal),), "labels", family="estimate", title=title(goal)) for goal in goals
    )
    return (Grid((common.RGLA_NETWORK[size],), attacks, batches),)


EXPERIMENT = Experiment(
    name="rgla-5",
    title="RGLA, table 5: the estimated loss, by the model's accuracy on its own photos",
    paper="rgla",
    grids=grids,
    columns=(
        Column("accuracy", "accuracy", ".1%"),
        Column("mean_loss", "mean loss"),
        Column("loss_error", "mean |l̂ − l|", ".3f"),
        Column("loss_error_l2", "L2 over 100 batches"),
    ),
    published=tuple(
        Published(f"{figure:g}", {"batch": B, "attack": title(goal)})
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
