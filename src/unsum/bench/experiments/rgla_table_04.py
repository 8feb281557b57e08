"""RGLA, table 4: batches below and above the number of classes."""

from __future__ import annotations

from dataclasses import replace

from unsum.bench.declare import Experiment, Grid, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import BY_CLASSES


def grids(size: Size) -> tuple[Grid, ...]:
    classes = {"smoke": 8, "small": 100, "paper": 100}[size]
    batches = {"smoke": (6, 12), "small": (64, 128), "paper": (64, 128)}[size]
    seeds = {"smoke": 1, "small": 1, "paper": 100}[size]
    network = replace(common.RGLA_NETWORK[size], classes=classes)
    return (Grid((network,), (common.EXACT, common.rgla(size), common.FGLA), batches, seeds=seeds),)


EXPERIMENT = Experiment(
    name="rgla-4",
    title="RGLA, table 4: a batch below and one above the number of classes",
    paper="rgla",
    grids=grids,
    columns=common.PICTURES,
    published=tuple(Published(figure, {"batch": B, "attack": "RGLA"}) for B, figure in BY_CLASSES.items()),
    published_title="published PSNR / SSIM / LPIPS",
    deviations={
        **common.DEVIATIONS,
        "small": (common.SMALL, "One batch of each size, because the larger one takes minutes."),
    },
    see=("../pictures.md", "exact-map.md"),
)
