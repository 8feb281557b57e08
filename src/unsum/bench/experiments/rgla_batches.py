"""RGLA, tables 4 and 8 to 11: duplicate labels, batch sizes on both sides of the number of classes, and larger photos."""

from __future__ import annotations

from dataclasses import replace

from unsum.bench.declare import Attack, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import (
    BY_CLASSES,
    FGLA_BY_BATCH,
    FGLA_BY_DUPLICATES,
    LOGITS_BY_BATCH,
    MATCHING_BY_DUPLICATES,
    RGLA_BY_BATCH,
    RGLA_BY_DUPLICATES,
    RGLA_WITH_ILRG,
)


def by_classes(size: Size) -> tuple[Grid, ...]:
    classes = {"smoke": 8, "small": 100, "paper": 100}[size]
    batches = {"smoke": (6, 12), "small": (64, 128), "paper": (64, 128)}[size]
    network = replace(common.RGLA_NETWORK[size], classes=classes)
    return (Grid((network,), (common.EXACT, common.rgla(size), common.FGLA), batches, seeds=common.ONE[size]),)


TABLE_4 = common.TABLE(
    name="rgla-4",
    title="RGLA, table 4: a batch below and one above the number of classes",
    grids=by_classes,
    columns=common.PICTURES,
    published=tuple(Published(figure, {"batch": B, "attack": "RGLA"}) for B, figure in BY_CLASSES.items()),
    published_title="published PSNR / SSIM / LPIPS",
    deviations={
        **common.DEVIATIONS,
        "small": (common.SMALL, "One batch of each size, because the larger one takes minutes."),
    },
    see=("../pictures.md", "exact-map.md"),
)


def by_duplicates(size: Size) -> tuple[Grid, ...]:
    same = {"smoke": (0, 4), "small": (0, 2, 4, 6, 8), "paper": (0, 2, 4, 6, 8)}[size]
    attacks = (common.EXACT, common.newton(size), common.rgla(size), common.released(size), common.FGLA)
    ends = (same[0], same[-1])
    return (
        Grid((common.RGLA_NETWORK[size],), attacks, same=same, seeds=common.SEEDS[size]),
        Grid((common.MATCHING_NETWORK[size],), common.matching(size), same=ends, seeds=common.FEW[size]),
    )


TABLE_8 = common.TABLE(
    name="rgla-8",
    title="RGLA, table 8: duplicate labels, B = 8",
    grids=by_duplicates,
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


def logits_by_batch(size: Size) -> tuple[Grid, ...]:
    attacks = (common.EXACT, common.newton(size), common.rgla(size), common.released(size))
    return (Grid((common.RGLA_NETWORK[size],), attacks, common.BATCHES[size], seeds=common.ONE[size]),)


TABLE_9 = common.TABLE(
    name="rgla-9",
    title="RGLA, table 9: logits by batch size, distinct labels",
    grids=logits_by_batch,
    columns=common.FEATURES,
    published=tuple(Published(figure, {"batch": B, "attack": "RGLA"}) for B, figure in LOGITS_BY_BATCH.items()),
    published_title="published ‖Ŷ′−Ŷ‖²",
    see=("../exact-features.md",),
)


def _with_ilrg(size: Size) -> Attack:
    return replace(common.rgla(size), granted="batch size", rule="ilrg", title="RGLA, labels by iLRG")


def pictures_by_batch(size: Size) -> tuple[Grid, ...]:
    network = (common.RGLA_NETWORK[size],)
    attacks = (common.EXACT, common.rgla(size), common.FGLA)
    return (
        Grid(network, attacks, common.BATCHES[size], seeds=common.ONE[size]),
        Grid(network, (_with_ilrg(size),), (8,), seeds=common.ONE[size]),
    )


TABLE_10 = common.TABLE(
    name="rgla-10",
    title="RGLA, table 10: batch size, distinct labels",
    grids=pictures_by_batch,
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


def by_side(size: Size) -> tuple[Grid, ...]:
    side = {"smoke": 24, "small": 192, "paper": 336}[size]
    usual = common.RGLA_NETWORK[size]
    attacks = (common.EXACT, common.rgla(size), common.FGLA)
    return (Grid((usual, replace(usual, size=side)), attacks, same=(0, 8), seeds=common.TWO[size]),)


TABLE_11 = common.TABLE(
    name="rgla-11",
    title="RGLA, table 11: larger photos, B = 8",
    grids=by_side,
    columns=common.PICTURES,
    published=(Published("somewhat below 224²", {"size": 336, "attack": "RGLA"}),),
    published_title="published PSNR",
    deviations={
        **common.DEVIATIONS,
        "small": (
            common.SMALL,
            "192² in the place of 336²; the embedded inverse draws 128² alone, so larger photos have no PSNR.",
        ),
        "paper": (common.OWN_INVERSE, "The figures of the table at 336² are not in our notes of the paper."),
    },
    see=("../pictures.md",),
)
