"""Soft-label recovery: how often one sample's label comes back, without and with noise; and
pictures, of a fully connected network layer by layer and of convolutional ones by matching."""

from __future__ import annotations

from functools import partial

from unsum_bench.declare import Attack, Column, Experiment, Grid, Labels, Network, Published, Size
from unsum_bench.experiments import common
from unsum_bench.published import SOFT_FCN, SOFT_FCN_DLG

KINDS: tuple[Labels, ...] = ("smooth", "mixup")
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
    Published(
        "0 of 900 fail", {"network": "lenet, learnable", "labels": "mixup", "attack": SOFT.title}
    ),
)
CLAIMED = (
    "*Claimed* is a certificate of `exact`; of soft-label recovery, which certifies nothing, it is "
    "that the published search found a root of its loss: noise moves the root and leaves one."
)
DEVIATIONS: dict[Size, tuple[str, ...]] = {
    "smoke": ("Size smoke: LeNet for 16² photos, 3 draws.",),
    "small": (
        (
            "Size small: 20 draws a row; networks are untrained but for a LeNet of 10 classes "
            "trained for 20 epochs on the photos."
        ),
        (
            "A sample counts as recovered where no entry of its label is off by more than 0.001, "
            "in the paper where |λ − λ*| < 0.01."
        ),
        CLAIMED,
    ),
    "paper": (
        "A sample counts as recovered where no entry of its label is off by more than 0.001.",
        CLAIMED,
        "1000 draws a row; [more photos](soft-labels.md) have 200.",
    ),
}


def lenet(size: Size) -> Network:
    return Network("lenet", 16 if size == "smoke" else 32, 10, train=False)


def networks(size: Size) -> tuple[Network, ...]:
    if size == "smoke":
        return (lenet(size),)
    lenets = (Network("lenet", 32, 100, train=False), Network("lenet ±0.5", 32, 100, train=False))
    trained = Network("lenet, learnable", 32, 10, train=False, epochs=20 if size == "small" else 60)
    usual = (*lenets, trained, Network("resnet18", 64, 10, train=False))
    return (*usual, *[Network("alexnet", 224, 1000, train=False)] * (size == "paper"))


def success(size: Size) -> tuple[Grid, ...]:
    draws = {"smoke": 3, "small": 20, "paper": 1000}[size]
    return (Grid(networks(size), ATTACKS, (1,), labels=KINDS, draws=draws),)


NOISES = (
    "none",
    "noise:1e-06",
    "noise:1e-05",
    "noise:0.0001",
    "noise:0.001",
    "noise:0.01",
    "noise:0.1",
)


def noisy(size: Size) -> tuple[Grid, ...]:
    draws = {"smoke": 2, "small": 10, "paper": 1000}[size]
    noises = ("noise:0.0001",) if size == "smoke" else NOISES
    return (Grid((lenet(size),), (SOFT, EXACT), (1,), labels=KINDS, defenses=noises, draws=draws),)


def peeled(size: Size) -> tuple[Grid, ...]:
    name, side = ("fcn, narrow", 16) if size == "smoke" else ("fcn", 64)
    network = Network(name, side, 17, train=False)
    dlg = Attack(
        "dlg", (("steps", {"smoke": 3, "small": 2, "paper": 300}[size]),), "batch size", title="DLG"
    )
    published = Attack(
        "layers",
        (("separator", "soft"),),
        family="peeler",
        title="soft-label recovery, then layer by layer",
    )
    layers = Attack("auto", title="exact, then layer by layer")
    return (
        Grid(
            (network,), (published, layers), (1,), labels=KINDS, seeds=min(20, common.SEEDS[size])
        ),
        Grid((network,), (dlg,), (1,), labels=KINDS[:1], seeds=1),
    )


def matched(size: Size) -> tuple[Grid, ...]:
    steps = {"smoke": 3, "small": 100, "paper": 4800}[size]
    names, seeds = ("soft-g", "soft-f", "soft-gf"), min(5, common.SEEDS[size])
    published = tuple(
        Attack(
            name,
            (("separator", "soft"), ("steps", steps)),
            title=f"{name} after soft-label recovery",
        )
        for name in names
    )
    ours = tuple(Attack(name, (("steps", steps),), title=f"{name} after exact") for name in names)
    wide, batches = Network("lenet", 32, 100, train=False), () if size == "smoke" else (4, 8)
    return (
        Grid((lenet(size),), (*published, *ours), (1,), labels=KINDS, seeds=seeds),
        Grid((wide,), ours, batches, labels=KINDS, seeds=seeds),
    )


_TABLE = partial(Experiment, paper="soft-labels")
_LABELS = partial(_TABLE, columns=COLUMNS, see=("../soft-labels.md",))
_NOT_NOTED = "The paper's figures are not in our notes of it."
TABLES = (
    _LABELS(
        name="soft-success",
        title="Soft-label recovery: how often one sample's label comes back",
        grids=success,
        published=PUBLISHED,
        deviations=DEVIATIONS,
    ),
    _LABELS(
        name="soft-noise",
        title="Soft-label recovery under Gaussian noise",
        grids=noisy,
        deviations={
            size: (
                *texts,
                (
                    "The paper's figures for noise are not in our notes of it, so none stand "
                    "beside ours."
                ),
            )
            for size, texts in DEVIATIONS.items()
        },
    ),
    _TABLE(
        name="soft-fcn",
        title="Soft-label recovery: pictures of a fully connected network, B = 1",
        grids=peeled,
        columns=(
            common.PSNR,
            common.SSIM,
            common.LPIPS,
            common.LABELS,
            common.SECONDS,
            common.PROCESSOR,
        ),
        published=(
            Published(
                SOFT_FCN, {"attack": "soft-label recovery, then layer by layer", "labels": "smooth"}
            ),
            Published(SOFT_FCN_DLG, {"attack": "DLG"}),
        ),
        published_title="published PSNR / SSIM / LPIPS",
        deviations={
            "smoke": ("Size smoke: 16² photos and narrow layers.",),
            "small": (
                "Size small: the paper's network and size of photos; DLG takes 2 of its 300 steps.",
            ),
            "paper": ("The paper shows one flower; here it is the mean over batches.",),
        },
        see=("peel.md",),
    ),
    _TABLE(
        name="soft-cnn",
        title="Soft-label recovery: pictures of LeNet by matching",
        grids=matched,
        columns=(common.PSNR, common.SSIM, common.LPIPS, common.SECONDS, common.PROCESSOR),
        deviations={
            "smoke": ("Size smoke: 16² photos and 3 steps.",),
            "small": ("Size small: 100 of 4800 steps; LeNet alone.", _NOT_NOTED),
            "paper": (
                (
                    "4800 steps of Adam; LeNet alone, ResNet-18 with four kinds of label by "
                    "label_worth.py of commit d5b3ef72."
                ),
                _NOT_NOTED,
            ),
        },
        see=("matching.md",),
    ),
)
