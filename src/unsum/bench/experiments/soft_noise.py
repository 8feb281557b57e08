"""Soft-label recovery under noise on the gradient."""

from __future__ import annotations

from unsum.bench.declare import Experiment, Grid, Labels, Network, Size
from unsum.bench.experiments.soft_success import COLUMNS, DEVIATIONS, EXACT, SOFT

NOISES: dict[Size, tuple[str, ...]] = {
    "smoke": ("noise:0.0001",),
    "small": ("none", "noise:1e-06", "noise:1e-05", "noise:0.0001", "noise:0.001", "noise:0.01", "noise:0.1"),
    "paper": ("none", "noise:1e-06", "noise:1e-05", "noise:0.0001", "noise:0.001", "noise:0.01", "noise:0.1"),
}


def grids(size: Size) -> tuple[Grid, ...]:
    draws = {"smoke": 2, "small": 10, "paper": 1000}[size]
    network = Network("lenet", 16 if size == "smoke" else 32, 10, train=False)
    kinds: tuple[Labels, ...] = ("smooth", "mixup")
    return (Grid((network,), (SOFT, EXACT), (1,), labels=kinds, defenses=NOISES[size], draws=draws),)


EXPERIMENT = Experiment(
    name="soft-noise",
    title="Soft-label recovery under Gaussian noise",
    paper="soft-labels",
    grids=grids,
    columns=COLUMNS,
    deviations={
        size: (*texts, "The paper's figures for noise are not in our notes of it, so none stand beside ours.")
        for size, texts in DEVIATIONS.items()
    },
    see=("../soft-labels.md",),
)
