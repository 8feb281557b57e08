"""RGLA's figures 1 to 17, by the paper's own numbers.

Curves draw the cells of tables. Pictures are of the embedded photos, because those of ImageNet may
not be shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unsum_bench import published as paper
from unsum_bench.declare import Attack, Column, Data, Figure, Grid, Published, Size
from unsum_bench.experiments import rgla as tables
from unsum_bench.experiments.rgla import EXACT, FGLA, NETWORK, PICTURES, PSNR, declared, rgla

IDENTITIES = 10_177  # of CelebA
SHOWN = (
    "Pictures are of the embedded photos, because ImageNet's may not be shown; figures under them "
    "are of that one batch."
)
STRIPS: dict[str, Any] = {"columns": PICTURES, "figure": Figure("pictures"), "also": SHOWN}
SIXTEEN = STRIPS | {"also": f"{SHOWN} There are sixteen of them; table 10 has the figures of 256."}
OPTIMIZED = STRIPS | {
    "published": (Published("20.53 / .66 / .45 (0.82 s, one batch)", {"attack": "RGLA"}),)
}
TRUE_LOGITS = replace(EXACT, title="true logits (exact features)")


def _strip(size: Size, *attacks: Attack, **axes: Any) -> Grid:
    """One batch of eight embedded photos, with what each attack made of it."""
    chosen = {"batches": (8,), "networks": (NETWORK[size],), **axes}
    return Grid(
        attacks=attacks or (rgla(size), FGLA, EXACT), data="embedded", pictures=True, **chosen
    )


def beside_each_other(size: Size) -> tuple[Grid, ...]:
    return (_strip(size, same=(4,)),)


def other_data(size: Size) -> tuple[Grid, ...]:
    """CIFAR-100, CIFAR's photos under ten classes, and a head of CelebA's size."""
    data: Data = "photos" if size == "smoke" else "cifar"
    classes = (100, 10) if size != "smoke" else (12, 10)
    attacks = (rgla(size), FGLA)
    grids = tables.separating(
        size,
        *attacks,
        networks=tuple(replace(NETWORK[size], classes=C) for C in classes),
        data=data,
    )
    if size != "paper":
        return grids
    faces = tables.separating(
        size, *attacks, networks=(replace(NETWORK[size], classes=IDENTITIES),)
    )
    return *grids, *(replace(grid, draws=20) for grid in faces)


def twins(size: Size) -> tuple[Grid, ...]:
    """Right solutions and twins, in both forms, with and without L_loss."""
    draws = {"smoke": 2, "small": 100, "paper": 100}[size]
    network = NETWORK["smoke" if size == "smoke" else "small"]
    attacks = tuple(
        Attack(
            "rgla",
            (
                ("constant_D", constant),
                ("objectives", parts),
                ("start", start),
                ("steps", tables.STEPS[size]),
            ),
            "labels",
            family="twins",
            title=(
                f"{'D constant' if constant else 'D differentiated'}, {'+'.join(parts)}, from "
                f"{start}"
            ),
        )
        for start in ("randn", "labels")
        for constant in (True, False)
        for parts in (("w",), ("w", "b", "loss"))
    )
    return (Grid((network,), attacks, draws=draws, random_labels=True),)


def by_duplicates(size: Size) -> tuple[Grid, ...]:
    return tuple(
        grid
        for grid in tables.by_duplicates(size)
        if grid.attacks[0].name in ("rgla", "fgla", "exact")
    )


def large_batch(size: Size) -> tuple[Grid, ...]:
    return (_strip(size, rgla(size), EXACT, batches=(16 if size != "smoke" else 8,)),)


def from_true_logits(size: Size) -> tuple[Grid, ...]:
    return (_strip(size, rgla(size), TRUE_LOGITS),)


def by_start(size: Size) -> tuple[Grid, ...]:
    starts = [s for s in tables.STARTS if size != "smoke" or s != "reconstruction"]
    return (_strip(size, *(rgla(size, f"from {start}", start=start) for start in starts)),)


def all_attacks(size: Size) -> tuple[Grid, ...]:
    return (_strip(size),)


def by_labels(size: Size) -> tuple[Grid, ...]:
    return (_strip(size, rgla(size), tables.with_ilrg(size)),)


def larger(size: Size) -> tuple[Grid, ...]:
    """At the paper's size alone: no inverse draws the small network's larger maps."""
    side = {"smoke": 24, "small": 128, "paper": 336}[size]
    return (_strip(size, networks=(replace(NETWORK[size], size=side),)),)


def _under(defense: str) -> Any:
    def grids(size: Size) -> tuple[Grid, ...]:
        return (_strip(size, defenses=(defense,)),)

    return grids


def by_pruning(size: Size) -> tuple[Grid, ...]:
    return (_strip(size, rgla(size), defenses=tuple(paper.BY_PRUNING)),)


def by_objectives(size: Size) -> tuple[Grid, ...]:
    return (
        _strip(
            size, *(rgla(size, "+".join(parts), objectives=parts) for parts in paper.BY_OBJECTIVES)
        ),
    )


def _curve(x: str, x_title: str, *, log_x: bool = False) -> Figure:
    return Figure("curve", x, "psnr", x_title, "PSNR, dB", log_x=log_x)


TWINS = (
    Column("twins", "twins of all", ".0%"),
    Column("right_psnr", "PSNR, right"),
    Column("twin_psnr", "twin"),
    Column("right_error", "feature error, right", ".1e"),
    Column("twin_error", "twin", ".1e"),
    Column("right_w", "L_w, right", ".1e"),
    Column("twin_w", "twin", ".1e"),
    Column("right_b", "L_b, right", ".1e"),
    Column("twin_b", "twin", ".1e"),
    Column("right_entropy", "cross-entropy, right"),
    Column("twin_entropy", "twin"),
    Column("true_entropy", "true"),
)
FIGURES = (
    declared(
        "figure 1",
        "attacks beside each other, half of the labels alike",
        beside_each_other,
        **STRIPS,
    ),
    declared(
        *("figure 2", "CIFAR-100 and CelebA's number of identities", other_data, PICTURES),
        also={
            "paper": (
                "C = 100 and C = 10 are photos of CIFAR-100 (--cifar), enlarged; C = 10 177 is a "
                "head of CelebA's size over ImageNet's photos, because CelebA's may not be had "
                "here."
            ),
        },
    ),
    declared(
        *("figure 3", "right solutions and twins", twins, TWINS),
        also="The embedded network at both sizes: a solution is a twin where a sample's own "
        "features are more than 5 % off. "
        '"From labels" starts near the labels, where twins are said to lie.',
        figure=Figure("scatter"),
    ),
    declared(
        *("figure 4 left", "PSNR against duplicates", by_duplicates, (PSNR,)),
        figure=_curve("same", "labels alike, of 8"),
    ),
    declared(
        *("figure 4 right", "PSNR against batch size", tables.pictures_by_batch, (PSNR,)),
        figure=_curve("batch", "batch size", log_x=True),
    ),
    declared("figure 5", "a large batch, and what came back", large_batch, **SIXTEEN),
    declared(
        *("figure 6", "the estimated loss over accuracy and batch size", tables.by_accuracy),
        (Column("loss_error_squared", "mean (l̂ − l)²", ".3f"),),
        figure=Figure(
            "curve",
            "batch",
            "loss_error_squared",
            "batch size",
            "mean (l̂ − l)²",
            log_x=True,
            log_y=True,
        ),
    ),
    declared(
        "figure 7", "pictures from optimized and from true logits", from_true_logits, **OPTIMIZED
    ),
    declared("figure 8", "pictures by start", by_start, **STRIPS),
    declared(
        *("figure 9", "total loss over iterations, by start", tables.by_start),
        (Column("loss", "sum of losses at the end", ".1e", "median"),),
        figure=Figure("history", "step", "loss", "steps of Adam", "sum of losses", log_y=True),
    ),
    declared("figure 10", "an example of all attacks", all_attacks, **STRIPS),
    declared("figure 11", "true and inferred labels", by_labels, **STRIPS),
    declared("figure 12", "336²", larger, **STRIPS),
    declared("figure 13", "all attacks under noise of 0.01", _under("noise:0.01"), **STRIPS),
    declared("figure 14", "all attacks under clipping to 4", _under("clip:4"), **STRIPS),
    declared("figure 15", "all attacks under 99.9 % compression", _under("prune:0.999"), **STRIPS),
    declared("figure 16", "compression ratios", by_pruning, **STRIPS),
    declared("figure 17", "ablation of objectives", by_objectives, **STRIPS),
)
