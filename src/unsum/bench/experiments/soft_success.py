"""Soft-label recovery: how often the label of one sample comes back."""

from __future__ import annotations

from unsum.bench.declare import Attack, Column, Experiment, Grid, Network, Published, Size

SOFT = Attack("soft", family="soft", title="soft-label recovery")
EXACT = Attack("exact", family="soft", title="exact, no ∇b")
EXACT_WITH_BIAS = Attack("exact", (("with_bias", True),), family="soft", title="exact, ∇b")
ATTACKS = (SOFT, EXACT, EXACT_WITH_BIAS)
COLUMNS = (
    Column("recovered", "recovered", ".1%"),
    Column("claimed", "claimed", ".1%"),
    Column("target_error", "largest error, median", ".1e", "median"),
    Column("attack_seconds", "seconds", ".3f"),
)
PUBLISHED = (
    Published("0 of 1000 fail", {"network": "resnet18", "labels": "smooth", "attack": SOFT.title}),
    Published("0 of 900 fail", {"network": "lenet, learnable", "labels": "mixup", "attack": SOFT.title}),
)
DEVIATIONS: dict[Size, tuple[str, ...]] = {
    "smoke": ("Size smoke: LeNet for 16² photos, 3 draws.",),
    "small": (
        "Size small: 20 draws a row; networks are untrained but for a LeNet of 10 classes trained for 20 epochs on the photos.",
        "A sample counts as recovered where no entry of its label is off by more than 0.001, in the paper where |λ − λ*| < 0.01.",
    ),
    "paper": ("A sample counts as recovered where no entry of its label is off by more than 0.001.",),
}


def networks(size: Size) -> tuple[Network, ...]:
    if size == "smoke":
        return (Network("lenet", 16, 10, train=False),)
    lenets = (Network("lenet", 32, 100, train=False), Network("lenet ±0.5", 32, 100, train=False))
    trained = Network("lenet, learnable", 32, 10, train=False, epochs=20 if size == "small" else 60)
    usual = (*lenets, trained, Network("resnet18", 64, 10, train=False))
    return (*usual, *[Network("alexnet", 224, 1000, train=False)] * (size == "paper"))


def grids(size: Size) -> tuple[Grid, ...]:
    draws = {"smoke": 3, "small": 20, "paper": 1000}[size]
    return (Grid(networks(size), ATTACKS, (1,), labels=("smooth", "mixup"), draws=draws),)


EXPERIMENT = Experiment(
    name="soft-success",
    title="Soft-label recovery: how often one sample's label comes back",
    paper="soft-labels",
    grids=grids,
    columns=COLUMNS,
    published=PUBLISHED,
    deviations=DEVIATIONS,
    see=("../soft-labels.md",),
)
