"""Soft-label recovery: pictures, of a fully connected network layer by layer and of convolutional ones by matching."""

from __future__ import annotations

from unsum.bench.declare import Attack, Experiment, Grid, Labels, Network, Published, Size
from unsum.bench.experiments import common
from unsum.bench.published import SOFT_FCN, SOFT_FCN_DLG

KINDS: tuple[Labels, ...] = ("smooth", "mixup")


def peeled(size: Size) -> tuple[Grid, ...]:
    network = {
        "smoke": Network("fcn, narrow", 16, 17, train=False),
        "small": Network("fcn", 64, 17, train=False),
        "paper": Network("fcn", 64, 17, train=False),
    }[size]
    dlg = Attack("dlg", (("steps", {"smoke": 3, "small": 2, "paper": 300}[size]),), "batch size", title="DLG")
    layers = Attack("auto", title="exact, then layer by layer")
    return (
        Grid((network,), (layers,), (1,), labels=KINDS, seeds=common.SEEDS[size]),
        Grid((network,), (dlg,), (1,), labels=KINDS[:1], seeds=1),
    )


def matched(size: Size) -> tuple[Grid, ...]:
    network = Network("lenet", 16 if size == "smoke" else 32, 10, train=False)
    steps = {"smoke": 3, "small": 100, "paper": 300}[size]
    attacks = tuple(Attack(name, (("steps", steps),), title=name) for name in ("soft-g", "soft-f", "soft-gf"))
    return (Grid((network,), attacks, (1,), labels=KINDS, seeds=common.SEEDS[size]),)


FULLY_CONNECTED = Experiment(
    name="soft-fcn",
    title="Soft-label recovery: pictures of a fully connected network, B = 1",
    paper="soft-labels",
    grids=peeled,
    columns=(common.PSNR, common.SSIM, common.LPIPS, common.LABELS, common.SECONDS, common.PROCESSOR),
    published=(
        Published(SOFT_FCN, {"attack": "exact, then layer by layer"}),
        Published(SOFT_FCN_DLG, {"attack": "DLG"}),
    ),
    published_title="published PSNR / SSIM / LPIPS",
    deviations={
        "smoke": ("Size smoke: 16² photos and narrow layers.",),
        "small": ("Size small: the paper's network and size of photos; DLG takes 2 of its 300 steps.",),
        "paper": ("The paper shows one flower; here it is the mean over batches.",),
    },
    see=("peel.md",),
)
CONVOLUTIONAL = Experiment(
    name="soft-cnn",
    title="Soft-label recovery: pictures of LeNet by matching, B = 1",
    paper="soft-labels",
    grids=matched,
    columns=(common.PSNR, common.SSIM, common.LPIPS, common.SECONDS, common.PROCESSOR),
    deviations={
        "smoke": ("Size smoke: 16² photos and 3 steps.",),
        "small": ("Size small: 100 of 300 steps; LeNet alone.", "The paper's figures are not in our notes of it."),
        "paper": ("LeNet alone.", "The paper's figures are not in our notes of it."),
    },
    see=("matching.md",),
)
