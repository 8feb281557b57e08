"""RGLA's figures 3 to 9 by their subjects. Curves draw the cells of tables; only pictures and the noise's curve have their own.

Our notes of the paper have the subjects of its figures, not which number each carries: the numbers here are an order of ours.
"""

from __future__ import annotations

from functools import partial

from unsum.bench.declare import Figure, Grid, Size
from unsum.bench.experiments import common
from unsum.bench.experiments.rgla_batches import by_duplicates, pictures_by_batch
from unsum.bench.experiments.rgla_defenses import by_pruning

_NUMBERS = "The numbers of figures are ours: our notes of the paper have its figures' subjects alone."
DEVIATIONS = {size: (*common.DEVIATIONS[size], _NUMBERS) for size in common.DEVIATIONS}
NOISES: dict[Size, tuple[str, ...]] = {
    "smoke": ("none", "noise:0.01"),
    "small": ("none", "noise:1e-05", "noise:0.0001", "noise:0.001", "noise:0.01", "noise:0.1"),
    "paper": ("none", "noise:1e-05", "noise:0.0001", "noise:0.001", "noise:0.01", "noise:0.1"),
}
_DRAWN = partial(common.TABLE, deviations=DEVIATIONS)
LEAKAGE = "leakage (1: the sample itself)"


def pictured(size: Size, same: int) -> tuple[Grid, ...]:
    """On the embedded photos, which may be shown."""
    attacks = (common.EXACT, common.rgla(size), common.FGLA)
    return (Grid((common.RGLA_NETWORK[size],), attacks, same=(same,), data="embedded", pictures=True),)


def distinct(size: Size) -> tuple[Grid, ...]:
    return pictured(size, 0)


def alike(size: Size) -> tuple[Grid, ...]:
    return pictured(size, 8)


def noisy(size: Size) -> tuple[Grid, ...]:
    attacks = (common.EXACT, common.ADAPTIVE, common.rgla(size), common.FGLA)
    return (Grid((common.RGLA_NETWORK[size],), attacks, defenses=NOISES[size]),)


FIGURE_3 = _DRAWN(
    name="rgla-figure-3",
    title="RGLA, figure 3: eight photos of distinct labels, and what came back",
    grids=distinct,
    columns=common.PICTURES,
    see=("../pictures.md",),
    figure=Figure("pictures"),
)
FIGURE_4 = _DRAWN(
    name="rgla-figure-4",
    title="RGLA, figure 4: eight photos of one label, and what came back",
    grids=alike,
    columns=common.PICTURES,
    see=("../pictures.md",),
    figure=Figure("pictures"),
)
FIGURE_5 = _DRAWN(
    name="rgla-figure-5",
    title="RGLA, figure 5: leakage against duplicates",
    grids=by_duplicates,
    columns=(common.LEAKAGE, common.PSNR),
    figure=Figure("curve", "same", "leakage", "labels alike, of 8", LEAKAGE),
)
FIGURE_6 = _DRAWN(
    name="rgla-figure-6",
    title="RGLA, figure 6: leakage against batch size",
    grids=pictures_by_batch,
    columns=(common.LEAKAGE, common.PSNR),
    figure=Figure("curve", "batch", "leakage", "batch size", LEAKAGE, log_x=True),
)
FIGURE_7 = _DRAWN(
    name="rgla-figure-7",
    title="RGLA, figure 7: time against batch size",
    grids=pictures_by_batch,
    columns=(common.PROCESSOR, common.SECONDS),
    figure=Figure("curve", "batch", "attack_cpu", "batch size", "seconds of CPU", log_x=True, log_y=True),
)
FIGURE_8 = _DRAWN(
    name="rgla-figure-8",
    title="RGLA, figure 8: leakage against noise, B = 8",
    grids=noisy,
    columns=(common.LEAKAGE, common.COSINE, common.PSNR, common.LABELS, common.SECONDS),
    see=("../defenses.md", "../../guides/sweep.md"),
    figure=Figure("curve", "strength", "leakage", "standard deviation of the noise", LEAKAGE, log_x=True),
)
FIGURE_9 = _DRAWN(
    name="rgla-figure-9",
    title="RGLA, figure 9: leakage against pruning, B = 8",
    grids=by_pruning,
    columns=(common.LEAKAGE, common.COSINE, common.PSNR),
    figure=Figure("curve", "strength", "leakage", "share of entries removed", LEAKAGE),
)
FIGURES = (FIGURE_3, FIGURE_4, FIGURE_5, FIGURE_6, FIGURE_7, FIGURE_8, FIGURE_9)
