"""What the tables share: networks and steps of each size, the methods as tables name them, and columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from unsum.bench.declare import Attack, Column, Experiment, Granted, Network, Size, Value

RGLA_NETWORK: Mapping[Size, Network] = {
    "smoke": Network("conv", 16, 20),
    "small": Network("default", 128, 100),
    "paper": Network("resnet50", 224, 1000),
}
MATCHING_NETWORK: Mapping[Size, Network] = {
    "smoke": Network("conv", 16, 20),
    "small": Network("conv", 32, 100),
    "paper": Network("resnet50", 224, 1000),
}
SEEDS: Mapping[Size, int] = {"smoke": 1, "small": 3, "paper": 100}
TWO: Mapping[Size, int] = {"smoke": 1, "small": 2, "paper": 100}
ONE: Mapping[Size, int] = {"smoke": 1, "small": 1, "paper": 100}
FEW: Mapping[Size, int] = {"smoke": 1, "small": 1, "paper": 20}  # for methods that take minutes a batch
RGLA_STEPS: Mapping[Size, int] = {"smoke": 200, "small": 20_000, "paper": 20_000}
BATCHES: Mapping[Size, tuple[int, ...]] = {
    "smoke": (4, 8),
    "small": (8, 16, 32, 64),
    "paper": (8, 16, 32, 64, 128, 256),
}

PSNR = Column("psnr", "PSNR")
SSIM = Column("ssim", "SSIM", ".3f")
LPIPS = Column("lpips", "LPIPS", ".3f")
LEAKAGE = Column("leakage", "leakage", ".2f")
LABELS = Column("labels", "labels right", ".0%")
ERROR = Column("feature_error", "feature error", ".1e")
MEDIAN = Column("median_feature_error", "feature error, median", ".1e", "median")
WORST = Column("worst_feature_error", "worst", ".1e", "max")
RECOVERED = Column("recovered", "within 1 %", ".0%")
COSINE = Column("cosine", "cosine", ".4f")
LOGITS = Column("logit_error", "‖Ŷ′−Ŷ‖²", ".1e", "median")
SECONDS = Column("attack_seconds", "seconds", ".2f", "median")
PROCESSOR = Column("attack_cpu", "of CPU", ".2f", "median")  # what a busy machine leaves alone
PICTURES = (PSNR, SSIM, LPIPS, ERROR, LABELS, LEAKAGE, SECONDS, PROCESSOR)
FEATURES = (LOGITS, MEDIAN, WORST, RECOVERED, COSINE, PSNR, SECONDS, PROCESSOR)

FGLA = Attack("fgla", granted="labels", title="FGLA")
EXACT = Attack("exact", title="exact, nothing granted")
ADAPTIVE = Attack("adaptive", granted="batch size", title="adaptive, batch size granted")


def rgla(size: Size, title: str = "RGLA", **options: Value) -> Attack:
    """As the paper writes it, D differentiated; labels granted."""
    chosen = {"steps": RGLA_STEPS[size], **options}
    return Attack("rgla", tuple(sorted(chosen.items())), "labels", title=title)


def released(size: Size, title: str = "released RGLA", **options: Value) -> Attack:
    """As the authors' code does it: D held constant in the backward pass."""
    return rgla(size, title, constant_D=True, **options)


def newton(size: Size) -> Attack:
    """The same equations by second-order steps; labels granted."""
    few: tuple[tuple[str, Value], ...] = (("steps", 20), ("tries", 1)) if size == "smoke" else ()
    return Attack("rgla-newton", few, "labels", title="RGLA's equations, Levenberg–Marquardt")


def matching(size: Size) -> tuple[Attack, ...]:
    """DLG, IG and GGL with labels as published; fewer steps where the size says so, GGL with --option ggl:generator=…."""
    steps: Mapping[str, Mapping[Size, int]] = {
        "dlg": {"smoke": 3, "small": 60, "paper": 300},
        "ig": {"smoke": 10, "small": 1000, "paper": 24_000},
        "ggl": {"smoke": 2, "small": 50, "paper": 500},
    }
    granted: Mapping[str, Granted] = {"dlg": "batch size", "ig": "labels", "ggl": "labels"}
    return tuple(Attack(name, (("steps", at[size]),), granted[name], title=name.upper()) for name, at in steps.items())


SMOKE = (
    "Size smoke: a network of two convolutions, 16² photos, 20 classes and few steps; it shows that everything runs."
)
SMALL = (
    "Size small: unsum's embedded network (128², 32 768 features under the head, C = 100) in the place of ResNet-50 (224², "
    "100 352 features, C = 1000), and its embedded inverse in the place of FGLA's generator; a few batches (the last column "
    "counts them) instead of 100."
)
SMALL_MATCHING = (
    "Size small: DLG, IG and GGL run on a network of two convolutions and 32² photos, with 60, 1000 and 50 of their 300, "
    "24 000 and 500 steps; GGL has the generator that --option gives it, such as that of examples/generator.py."
)
OWN_INVERSE = "Size paper: pictures come from the inverse given with --inverse, not from the authors' generator."
DEVIATIONS: Mapping[Size, tuple[str, ...]] = {"smoke": (SMOKE,), "small": (SMALL,), "paper": (OWN_INVERSE,)}
WITH_MATCHING: Mapping[Size, tuple[str, ...]] = {**DEVIATIONS, "small": (SMALL, SMALL_MATCHING)}
TABLE = partial(Experiment, paper="rgla", deviations=DEVIATIONS)  # what most of RGLA's tables share
