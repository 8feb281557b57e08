"""RGLA's tables 2 to 12, and its figures 3 to 9 by their subjects.

Curves draw the cells of tables; only pictures and the noise's curve have their own. Our notes of the paper have the subjects of
its figures, not which number each carries: the numbers here are an order of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from unsum.bench import published as paper
from unsum.bench.declare import NONE, Attack, Column, Experiment, Figure, Granted, Grid, Network, Published, Size, Value
from unsum.bench.experiments import common

MATCHING_NETWORK: Mapping[Size, Network] = {
    "smoke": Network("conv", 16, 20),
    "small": Network("conv", 32, 100),
    "paper": Network("resnet50", 224, 1000),
}
NETWORK: Mapping[Size, Network] = {**MATCHING_NETWORK, "small": Network("default", 128, 100)}
TWO: Mapping[Size, int] = {"smoke": 1, "small": 2, "paper": 100}
ONE: Mapping[Size, int] = {"smoke": 1, "small": 1, "paper": 100}
FEW: Mapping[Size, int] = {"smoke": 1, "small": 1, "paper": 20}  # for methods that take minutes a batch
STEPS: Mapping[Size, int] = {"smoke": 200, "small": 20_000, "paper": 20_000}
BATCHES: Mapping[Size, tuple[int, ...]] = {
    "smoke": (4, 8),
    "small": (8, 16, 32, 64),
    "paper": (8, 16, 32, 64, 128, 256),
}
STARTS = ("randn", "rand", "zeros", "ones", "photos", "fgla")
NOISES = (NONE, "noise:1e-05", "noise:0.0001", "noise:0.001", "noise:0.01", "noise:0.1")

MEDIAN = Column("median_feature_error", "feature error, median", ".1e", "median")
TIMES = (common.SECONDS, common.PROCESSOR)
PICTURES = (
    *(common.PSNR, common.SSIM, common.LPIPS, Column("feature_error", "feature error", ".1e"), common.LABELS),
    *(common.LEAKAGE, *TIMES),
)
FEATURES = (
    Column("logit_error", "‖Ŷ′−Ŷ‖²", ".1e", "median"),
    MEDIAN,
    Column("worst_feature_error", "worst", ".1e", "max"),
    Column("recovered", "within 1 %", ".0%"),
    *(common.COSINE, common.PSNR, *TIMES),
)
DEVIATIONS: Mapping[Size, str] = {
    "smoke": "Size smoke: a network of two convolutions, 16² photos, 20 classes and few steps; it shows that everything runs.",
    "small": "Size small: unsum's embedded network (128², 32 768 features under the head, C = 100) in the place of ResNet-50 "
    "(224², 100 352 features, C = 1000), and its embedded inverse in the place of FGLA's generator; a few batches (the last "
    "column counts them) instead of 100.",
    "paper": "Size paper: pictures come from the inverse given with --inverse, not from the authors' generator.",
}
SMALL_MATCHING = (
    "Size small: DLG, IG and GGL run on a network of two convolutions and 32² photos, with 60, 1000 and 50 of their 300, "
    "24 000 and 500 steps; GGL has the generator that --option gives it, such as that of examples/generator.py."
)

FGLA = Attack("fgla", granted="labels", title="FGLA")
EXACT = Attack("exact", title="exact, nothing granted")
ADAPTIVE = Attack("adaptive", granted="batch size", title="adaptive, batch size granted")


def rgla(size: Size, title: str = "RGLA", **options: Value) -> Attack:
    """As the paper writes it, D differentiated; labels granted."""
    return Attack("rgla", tuple(sorted({"steps": STEPS[size], **options}.items())), "labels", title=title)


def released(size: Size, title: str = "released RGLA", **options: Value) -> Attack:
    """As the authors' code does it: D held constant in the backward pass."""
    return rgla(size, title, constant_D=True, **options)


def newton(size: Size) -> Attack:
    """The same equations by second-order steps; labels granted."""
    few: tuple[tuple[str, Value], ...] = (("steps", 20), ("tries", 1)) if size == "smoke" else ()
    return Attack("rgla-newton", few, "labels", title="RGLA's equations, Levenberg–Marquardt")


def matching(size: Size, **axes: Any) -> Grid:
    """DLG, IG and GGL with labels as published; fewer steps where the size says so, GGL with --option ggl:generator=…."""
    methods: tuple[tuple[str, Granted, Mapping[Size, int]], ...] = (
        ("dlg", "batch size", {"smoke": 3, "small": 60, "paper": 300}),
        ("ig", "labels", {"smoke": 10, "small": 1000, "paper": 24_000}),
        ("ggl", "labels", {"smoke": 2, "small": 50, "paper": 500}),
    )
    attacks = tuple(Attack(name, (("steps", at[size]),), own, title=name.upper()) for name, own, at in methods)
    return Grid((MATCHING_NETWORK[size],), attacks, seeds=FEW[size], **axes)


def separating(size: Size, *attacks: Attack, **axes: Any) -> Grid:
    """These attacks, or where none is named those of most tables, on the network of the size."""
    return Grid((NETWORK[size],), attacks or (EXACT, rgla(size), FGLA), **axes)


def defended(size: Size, defenses: tuple[str, ...], seeds: int) -> Grid:
    return separating(size, EXACT, ADAPTIVE, rgla(size), FGLA, defenses=defenses, seeds=seeds)


def by_defense(size: Size) -> tuple[Grid, ...]:
    defenses = tuple(paper.BY_DEFENSE) if size != "smoke" else ("noise:0.01", "clip:4", "prune:0.9")
    return defended(size, defenses, TWO[size]), matching(size, defenses=defenses)


def by_pruning(size: Size) -> tuple[Grid, ...]:
    return (defended(size, tuple(paper.BY_PRUNING) if size != "smoke" else (NONE, "prune:0.9"), TWO[size]),)


def by_noise(size: Size) -> tuple[Grid, ...]:
    return (defended(size, NOISES if size != "smoke" else (NONE, "noise:0.01"), 1),)


def _objectives(objectives: tuple[str, ...]) -> str:
    return "RGLA, " + " + ".join(f"L_{part}" for part in objectives)


def by_objectives(size: Size) -> tuple[Grid, ...]:
    attacks = []
    for parts in paper.BY_OBJECTIVES:
        attacks.append(rgla(size, _objectives(parts), objectives=parts))
        attacks.append(released(size, f"released {_objectives(parts)}", objectives=parts))
    return (separating(size, *attacks, newton(size), EXACT, seeds=TWO[size]),)


def by_classes(size: Size) -> tuple[Grid, ...]:
    classes, batches = (8, (6, 12)) if size == "smoke" else (100, (64, 128))
    grid = separating(size, batches=batches, seeds=ONE[size])
    return (replace(grid, networks=(replace(NETWORK[size], classes=classes),)),)


def _accuracy(accuracy: float) -> str:
    return f"l̂ at an accuracy of {accuracy:.0%}"


def by_accuracy(size: Size) -> tuple[Grid, ...]:
    goals, batches = (paper.ACCURACIES, (8, 256)) if size != "smoke" else (paper.ACCURACIES[2:4], (8,))
    attacks = (Attack("l̂", (("accuracy", g),), "labels", family="estimate", title=_accuracy(g)) for g in goals)
    return (separating(size, *attacks, batches=batches),)


def by_start(size: Size) -> tuple[Grid, ...]:
    attacks = (rgla(size, f"RGLA from {start}", start=start) for start in STARTS)
    return (separating(size, *attacks, EXACT, seeds=TWO[size]),)


def by_duplicates(size: Size) -> tuple[Grid, ...]:
    same = (0, 4) if size == "smoke" else (0, 2, 4, 6, 8)
    attacks = (EXACT, newton(size), rgla(size), released(size), FGLA)
    return separating(size, *attacks, same=same, seeds=common.SEEDS[size]), matching(size, same=(same[0], same[-1]))


def logits_by_batch(size: Size) -> tuple[Grid, ...]:
    attacks = (EXACT, newton(size), rgla(size), released(size))
    return (separating(size, *attacks, batches=BATCHES[size], seeds=ONE[size]),)


def pictures_by_batch(size: Size) -> tuple[Grid, ...]:
    with_ilrg = replace(rgla(size), granted="batch size", rule="ilrg", title="RGLA, labels by iLRG")
    return separating(size, batches=BATCHES[size], seeds=ONE[size]), separating(size, with_ilrg, seeds=ONE[size])


def by_side(size: Size) -> tuple[Grid, ...]:
    usual = NETWORK[size]
    larger = replace(usual, size={"smoke": 24, "small": 192, "paper": 336}[size])
    return (replace(separating(size, same=(0, 8), seeds=TWO[size]), networks=(usual, larger)),)


def distinct(size: Size, same: int = 0) -> tuple[Grid, ...]:
    """On the embedded photos, which may be shown."""
    return (separating(size, same=(same,), data="embedded", pictures=True),)


def alike(size: Size) -> tuple[Grid, ...]:
    return distinct(size, 8)


def _table(
    name: str,
    title: str,
    grids: Callable[[Size], tuple[Grid, ...]],
    columns: tuple[Column, ...],
    *see: str,
    also: str | Mapping[Size, str] = "",
    **more: Any,
) -> Experiment:
    """A table or a figure; `also` are deviations of its own, at every size or at some."""
    own = also if isinstance(also, Mapping) else dict.fromkeys(DEVIATIONS, also)
    deviations = {size: tuple(filter(None, (text, own.get(size)))) for size, text in DEVIATIONS.items()}
    slug = name.removeprefix("table ").replace(" ", "-")
    more = {"published_title": "published PSNR", **more}
    return Experiment(
        f"rgla-{slug}", f"RGLA, {name}: {title}", "rgla", grids, columns, deviations=deviations, see=see, **more
    )


def _figure(name: str, title: str, grids: Callable[[Size], tuple[Grid, ...]], *see: str, **more: Any) -> Experiment:
    also = "The numbers of figures are ours: our notes of the paper have its figures' subjects alone."
    columns = more.pop("columns", (common.LEAKAGE, common.PSNR))
    return _table(f"figure {name}", title, grids, columns, *see, also=also, **more)


def _by(axis: str, attack: str, figures: Mapping[Any, str]) -> tuple[Published, ...]:
    return tuple(Published(figure, {axis: value, "attack": attack}) for value, figure in figures.items())


def _by_defense(rows: Mapping[str, Mapping[str, str]]) -> tuple[Published, ...]:
    """Rows of the methods' published figures, by defense."""
    return tuple(
        Published(figure, {"defense": defense, "attack": name.upper()})
        for defense, row in rows.items()
        for name, figure in row.items()
    )


def _leakage(x: str, x_title: str, *, log_x: bool = False) -> Figure:
    return Figure("curve", x, "leakage", x_title, "leakage (1: the sample itself)", log_x=log_x)


ALL_METRICS = "published PSNR / SSIM / LPIPS"
TABLES = (
    _table(
        *("table 2", "defenses, B = 8, distinct labels", by_defense, PICTURES, "../defenses.md", "../pictures.md"),
        published=_by_defense(paper.BY_DEFENSE),
        published_title=ALL_METRICS,
        also={"small": SMALL_MATCHING},
    ),
    _table(
        *("table 3", "objectives, B = 8, distinct labels", by_objectives, FEATURES, "../exact-features.md"),
        published=tuple(
            Published(figure, {"attack": f"released {_objectives(parts)}"})
            for parts, figure in paper.BY_OBJECTIVES.items()
        ),
        also="Published figures stand beside the released code's objective, whose L_b has no effect, as in the paper's table.",
    ),
    _table(
        *("table 4", "a batch below and one above the number of classes", by_classes, PICTURES),
        *("../pictures.md", "exact-map.md"),
        published=_by("batch", "RGLA", paper.BY_CLASSES),
        published_title=ALL_METRICS,
        also={"small": "One batch of each size, because the larger one takes minutes."},
    ),
    _table(
        *("table 5", "the estimated loss, by the model's accuracy on its own photos", by_accuracy),
        (
            Column("accuracy", "accuracy", ".1%"),
            Column("mean_loss", "mean loss"),
            Column("loss_error", "mean |l̂ − l|", ".3f"),
            Column("loss_error_l2", "L2 over 100 batches"),
        ),
        "../exact-features.md",
        published=tuple(
            Published(f"{figure:g}", {"batch": B, "attack": _accuracy(goal)})
            for B, row in paper.LOSS_ERRORS.items()
            for goal, figure in zip(paper.ACCURACIES, row, strict=True)
        ),
        published_title="published L2",
        also="The model is a linear head trained on the photos' own features; the paper trained whole networks. Its L2 is taken "
        "as the root of the sum of 100 squares.",
    ),
    _table(
        *("table 6", "starts, B = 8, distinct labels (published: all end alike)", by_start, FEATURES),
        "../exact-features.md",
    ),
    _table(
        *("table 7", "how soon each start arrives (published: zeros and FGLA soonest)", by_start),
        (
            Column("arrived", "steps to 10× the last loss", ".0f", "median"),
            Column("loss", "sum of losses at the end", ".1e", "median"),
            *(MEDIAN, *TIMES),
        ),
        "../exact-features.md",
    ),
    _table(
        *("table 8", "duplicate labels, B = 8", by_duplicates, PICTURES),
        *("../exact-features.md", "matching.md", "../pictures.md"),
        published=(
            *_by("same", "RGLA", paper.RGLA_BY_DUPLICATES),
            *_by("same", "FGLA", paper.FGLA_BY_DUPLICATES),
            *(entry for name, row in paper.MATCHING_BY_DUPLICATES.items() for entry in _by("same", name.upper(), row)),
        ),
        also={"small": SMALL_MATCHING},
    ),
    _table(
        *("table 9", "logits by batch size, distinct labels", logits_by_batch, FEATURES, "../exact-features.md"),
        published=_by("batch", "RGLA", paper.LOGITS_BY_BATCH),
        published_title="published ‖Ŷ′−Ŷ‖²",
    ),
    _table(
        *("table 10", "batch size, distinct labels", pictures_by_batch, PICTURES),
        *("../pictures.md", "../exact-features.md"),
        published=(
            *_by("batch", "RGLA", paper.RGLA_BY_BATCH),
            *_by("batch", "FGLA", paper.FGLA_BY_BATCH),
            *_by("batch", "RGLA, labels by iLRG", {8: paper.RGLA_WITH_ILRG}),
        ),
        published_title=ALL_METRICS,
        also={"small": "Batches end at 64, because 128 is above C = 100; one batch of each size."},
    ),
    _table(
        *("table 11", "larger photos, B = 8", by_side, PICTURES, "../pictures.md"),
        published=_by("size", "RGLA", {336: "somewhat below 224²"}),
        also={
            "small": "192² in the place of 336²; the embedded inverse draws 128² alone, so larger photos have no PSNR.",
            "paper": "The figures of the table at 336² are not in our notes of the paper.",
        },
    ),
    _table(
        *("table 12", "pruning, B = 8, distinct labels", by_pruning, PICTURES, "../defenses.md"),
        published=_by_defense(paper.BY_PRUNING),
    ),
    _figure(
        *("3", "eight photos of distinct labels, and what came back", distinct, "../pictures.md"),
        columns=PICTURES,
        figure=Figure("pictures"),
    ),
    _figure(
        *("4", "eight photos of one label, and what came back", alike, "../pictures.md"),
        columns=PICTURES,
        figure=Figure("pictures"),
    ),
    _figure("5", "leakage against duplicates", by_duplicates, figure=_leakage("same", "labels alike, of 8")),
    _figure("6", "leakage against batch size", pictures_by_batch, figure=_leakage("batch", "batch size", log_x=True)),
    _figure(
        *("7", "time against batch size", pictures_by_batch),
        columns=(common.PROCESSOR, common.SECONDS),
        figure=Figure("curve", "batch", "attack_cpu", "batch size", "seconds of CPU", log_x=True, log_y=True),
    ),
    _figure(
        *("8", "leakage against noise, B = 8", by_noise, "../defenses.md", "../../guides/sweep.md"),
        columns=(common.LEAKAGE, common.COSINE, common.PSNR, common.LABELS, common.SECONDS),
        figure=_leakage("strength", "standard deviation of the noise", log_x=True),
    ),
    _figure(
        *("9", "leakage against pruning, B = 8", by_pruning),
        columns=(common.LEAKAGE, common.COSINE, common.PSNR),
        figure=_leakage("strength", "share of entries removed"),
    ),
)
