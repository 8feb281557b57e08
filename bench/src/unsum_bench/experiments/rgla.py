"""RGLA's tables 1 to 12, by the paper's own numbers; its figures are in `rgla_figures`.

As in the paper, B = 8, labels are granted to every attack that needs them and drawn at random with
repetition, and RGLA holds D constant in its backward pass; "D differentiated" is the other reading
of its formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from unsum_bench import published as paper
from unsum_bench.declare import (
    NONE,
    Attack,
    Column,
    Data,
    Experiment,
    Granted,
    Grid,
    Network,
    Published,
    Size,
    Value,
)
from unsum_bench.experiments import common

MATCHING_NETWORK: Mapping[Size, Network] = {
    "smoke": Network("conv", 16, 20),
    "small": Network("conv", 32, 100),
    "paper": Network("resnet50", 224, 1000),
}
NETWORK: Mapping[Size, Network] = {**MATCHING_NETWORK, "small": Network("default", 128, 100)}
STEPS: Mapping[Size, int] = {"smoke": 200, "small": 20_000, "paper": 20_000}
BATCHES: Mapping[Size, tuple[int, ...]] = {
    "smoke": (4, 8),
    "small": (8, 16, 32, 64),
    "paper": (8, 16, 32, 64, 128, 256),
}
STARTS = ("randn", "rand", "zeros", "ones", "photos", "reconstruction", "fgla")
SMALL_BATCH = 32  # up to it a hundred batches fit one Adam

PSNR, SSIM, LPIPS = (
    replace(column, spread=True) for column in (common.PSNR, common.SSIM, common.LPIPS)
)
MEDIAN = Column("median_feature_error", "feature error, median", ".1e", "median")
ERROR = Column("feature_error", "feature error", ".1e", spread=True)
RECOVERED = Column("recovered", "within 1 %", ".0%", spread=True)
TIMES = (common.SECONDS, common.PROCESSOR)
PICTURES = (PSNR, SSIM, LPIPS, ERROR, MEDIAN, RECOVERED, common.LABELS, *TIMES)
FEATURES = (
    Column("logit_error", "‖Ŷ′−Ŷ‖²", ".1e", "median"),
    Column("logit_error_a_sample", "a sample", ".1e", spread=True),
    *(
        MEDIAN,
        Column("worst_feature_error", "worst", ".1e", "max"),
        RECOVERED,
        common.COSINE,
        PSNR,
        SSIM,
        LPIPS,
    ),
    *TIMES,
)
DEVIATIONS: Mapping[Size, str] = {
    "smoke": (
        "Size smoke: a network of two convolutions, 16² photos, 20 classes and few steps; it shows "
        "that everything runs."
    ),
    "small": (
        "Size small: unsum's embedded network (128², 32 768 features under the head, C = 100) in "
        "the place of ResNet-50 (224², 100 352 features, C = 1000), and its embedded inverse in "
        "the place of FGLA's generator; 5 or 20 batches (the last column counts them) instead of "
        "100."
    ),
    "paper": (
        "Size paper: pictures come from the inverse given with --inverse, not from the authors' "
        "generator. ± is the standard error over batches; seconds are a batch's share of those "
        "that ran at once."
    ),
}
SMALL_MATCHING = (
    "Size small: DLG, IG and GGL run on a network of two convolutions and 32² photos, with 60, "
    "1000 and 50 of their 300, 24 000 and 500 steps; GGL has the generator that --option gives it, "
    "such as that of examples/generator.py."
)
RIVALS = "DLG, IG and GGL at this size are on the page of gradient matching."
OTHER_INVERSE = (
    "FGLA's rows up to 6 alike went through an inverse of 600 steps, all others through FGLA's "
    "generator."
)
REPEATED = (
    "Where a label repeats more often than the data have photos of it, a photo of another class "
    "carries it."
)

FGLA = Attack("fgla", granted="labels", title="FGLA")
EXACT = Attack("exact", title="exact, nothing granted")


def rgla(size: Size, title: str = "RGLA", **options: Value) -> Attack:
    """As the published figures have it, D constant in the backward pass; labels granted."""
    chosen = {"steps": STEPS[size], "constant_D": True, **options}
    return Attack("rgla", tuple(sorted(chosen.items())), "labels", title=title)


def differentiated(size: Size, title: str = "RGLA, D differentiated", **options: Value) -> Attack:
    """As the paper's formulas read."""
    return rgla(size, title, constant_D=False, **options)


def newton(size: Size) -> Attack:
    """The same equations by second-order steps; labels granted."""
    few: tuple[tuple[str, Value], ...] = (("steps", 20), ("tries", 1)) if size == "smoke" else ()
    return Attack("rgla-newton", few, "labels", title="RGLA's equations, Levenberg–Marquardt")


def matching(size: Size, **axes: Any) -> tuple[Grid, ...]:
    """DLG, IG and GGL with labels as published; fewer steps where the size says so, GGL with
    --option ggl:generator=….

    Not at the paper's size, where a batch takes minutes: docs/results/tables/pictures.md has them.
    """
    if size == "paper":
        return ()
    methods: tuple[tuple[str, Granted, Mapping[Size, int]], ...] = (
        ("dlg", "batch size", {"smoke": 3, "small": 60, "paper": 300}),
        ("ig", "labels", {"smoke": 10, "small": 1000, "paper": 24_000}),
        ("ggl", "labels", {"smoke": 2, "small": 50, "paper": 500}),
    )
    attacks = tuple(
        Attack(name, (("steps", at[size]),), own, title=name.upper()) for name, own, at in methods
    )
    return (Grid((MATCHING_NETWORK[size],), attacks, **axes),)


def batches_of(size: Size, attack: Attack, batch: int) -> int:
    """How many batches a cell is the mean of: the paper's hundred where they run at once, twenty
    elsewhere."""
    if size == "smoke":
        return 2
    if attack.name == "rgla-newton":
        return 5  # seconds a batch
    once = attack.name == "fgla" or dict(attack.options).get("constant_D") is True
    if size == "small":
        return 20 if batch <= SMALL_BATCH else 5
    return 100 if once and batch <= SMALL_BATCH else 20


def separating(
    size: Size,
    *attacks: Attack,
    batches: tuple[int, ...] = (8,),
    random_labels: bool = True,
    networks: tuple[Network, ...] = (),
    **axes: Any,
) -> tuple[Grid, ...]:
    """These attacks, or where none is named those of most tables, on the network of the size."""
    listed, on = attacks or (rgla(size), FGLA, EXACT), networks or (NETWORK[size],)
    return tuple(
        Grid(on, (one,), (B,), draws=batches_of(size, one, B), random_labels=random_labels, **axes)
        for B in batches
        for one in listed
    )


def _objectives(objectives: tuple[str, ...]) -> str:
    return " + ".join(f"L_{part}" for part in objectives)


def by_reach(size: Size) -> tuple[Grid, ...]:
    """At the small size's network in both: the question is one of B and C alone."""
    at: Size = "small" if size == "paper" else size
    classes = 8 if size == "smoke" else 100
    attacks = (rgla(at), differentiated(at), FGLA)
    return separating(
        at,
        *attacks,
        batches=(classes - 4, classes + 1),
        networks=(replace(NETWORK[at], classes=classes),),
    )


def by_defense(size: Size) -> tuple[Grid, ...]:
    defenses = tuple(paper.BY_DEFENSE) if size != "smoke" else ("noise:0.01", "clip:4", "prune:0.9")
    attacks = (rgla(size), differentiated(size), FGLA)
    return *separating(size, *attacks, defenses=defenses), *matching(size, defenses=defenses)


def by_objectives(size: Size) -> tuple[Grid, ...]:
    forms = ((rgla, "RGLA"), (differentiated, "D differentiated"))[: 1 if size == "paper" else 2]
    attacks = (
        make(size, f"{name}, {_objectives(parts)}", objectives=parts)
        for make, name in forms
        for parts in paper.BY_OBJECTIVES
    )
    return separating(size, *attacks, newton(size), EXACT)


def by_classes(size: Size) -> tuple[Grid, ...]:
    """On CIFAR-100, which has the hundred classes."""
    classes, batches = (8, (6, 12)) if size == "smoke" else (100, (64, 128))
    data: Data = "photos" if size == "smoke" else "cifar"
    network = replace(NETWORK[size], classes=classes)
    attacks = (rgla(size), differentiated(size), FGLA)
    return separating(size, *attacks, batches=batches, networks=(network,), data=data)


def _accuracy(accuracy: float) -> str:
    return f"l̂ at an accuracy of {accuracy:.0%}"


def by_accuracy(size: Size) -> tuple[Grid, ...]:
    goals, batches = (
        (paper.ACCURACIES, tuple(paper.LOSS_ERRORS))
        if size != "smoke"
        else (paper.ACCURACIES[2:4], (4, 8))
    )
    attacks = tuple(
        Attack("l̂", (("accuracy", g),), "labels", family="estimate", title=_accuracy(g))
        for g in goals
    )
    network = Network("conv", 16, 20) if size == "smoke" else Network("small resnet", 32, 100)
    return (Grid((network,), attacks, batches, data="photos" if size == "smoke" else "cifar"),)


def logits_by_batch(size: Size) -> tuple[Grid, ...]:
    return separating(size, rgla(size), differentiated(size), EXACT, batches=BATCHES[size])


def by_start(size: Size) -> tuple[Grid, ...]:
    starts = (
        STARTS if size != "smoke" else tuple(start for start in STARTS if start != "reconstruction")
    )
    return separating(size, *(rgla(size, f"RGLA from {start}", start=start) for start in starts))


def by_duplicates(size: Size) -> tuple[Grid, ...]:
    same = (0, 4) if size == "smoke" else (0, 2, 4, 6, 8)
    attacks = (rgla(size), differentiated(size), FGLA, EXACT, newton(size))
    return *separating(size, *attacks, same=same, random_labels=False), *matching(
        size, same=(same[0], same[-1])
    )


def with_ilrg(size: Size) -> Attack:
    return replace(rgla(size), granted="batch size", rule="ilrg", title="RGLA, labels by iLRG")


def by_labels(size: Size) -> tuple[Grid, ...]:
    cifar = replace(NETWORK[size], classes=100)
    grids = separating(size, rgla(size), with_ilrg(size))
    if size != "paper":
        return grids
    return *grids, *separating(size, rgla(size), with_ilrg(size), networks=(cifar,), data="cifar")


def pictures_by_batch(size: Size) -> tuple[Grid, ...]:
    return separating(size, batches=BATCHES[size])


def by_side(size: Size) -> tuple[Grid, ...]:
    usual = NETWORK[size]
    larger = replace(usual, size={"smoke": 24, "small": 192, "paper": 336}[size])
    grids = separating(size, networks=(usual,)), separating(size, networks=(larger,))
    return *grids[0], *(replace(grid, draws=min(grid.draws, 20)) for grid in grids[1])


def by_pruning(size: Size) -> tuple[Grid, ...]:
    defenses = tuple(paper.BY_PRUNING) if size != "smoke" else (NONE, "prune:0.9")
    return separating(size, rgla(size), FGLA, defenses=defenses)


def declared(
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
    deviations = {
        size: tuple(filter(None, (text, own.get(size)))) for size, text in DEVIATIONS.items()
    }
    slug = name.removeprefix("table ").replace(" ", "-")
    more = {"published_title": ALL_METRICS, **more}
    return Experiment(
        f"rgla-{slug}",
        f"RGLA, {name}: {title}",
        "rgla",
        grids,
        columns,
        deviations=deviations,
        see=see,
        **more,
    )


def _by(axis: str, attack: str, figures: Mapping[Any, str]) -> tuple[Published, ...]:
    return tuple(
        Published(figure, {axis: value, "attack": attack}) for value, figure in figures.items()
    )


def _by_defense(rows: Mapping[str, Mapping[str, str]]) -> tuple[Published, ...]:
    """Rows of the methods' published figures, by defense."""
    return tuple(
        Published(figure, {"defense": defense, "attack": name.upper()})
        for defense, row in rows.items()
        for name, figure in row.items()
    )


ALL_METRICS = "published PSNR / SSIM / LPIPS"
TABLES = (
    declared(
        *(
            "table 1",
            "how large a batch may be: just below the number of classes, and C + 1",
            by_reach,
            PICTURES,
        ),
        published=tuple(Published(text, {"attack": name}) for name, text in paper.BY_REACH.items()),
        published_title="published largest batch × photo",
        also=(
            "The paper's table lists earlier attacks; its other rows are on the page of both "
            f"papers. {REPEATED}"
        ),
    ),
    declared(
        *(
            "table 2",
            "three defenses, five attacks",
            by_defense,
            PICTURES,
            "../defenses.md",
            "matching.md",
        ),
        published=_by_defense(paper.BY_DEFENSE),
        also={"small": SMALL_MATCHING, "paper": RIVALS},
    ),
    declared(
        *("table 3", "objectives", by_objectives, FEATURES, "../exact-features.md"),
        published=tuple(
            Published(figure, {"attack": f"RGLA, {_objectives(parts)}"})
            for parts, figure in paper.BY_OBJECTIVES.items()
        ),
        also=(
            "D is constant, so that L_b has no effect, as in the paper's table; figure 3 has both "
            "forms."
        ),
    ),
    declared(
        *(
            "table 4",
            "a batch below and one above the hundred classes of CIFAR-100",
            by_classes,
            PICTURES,
        ),
        *("../pictures.md", "exact-map.md"),
        published=_by("batch", "RGLA", paper.BY_CLASSES),
        also="Photos of CIFAR-100 (--cifar), enlarged to the network's size.",
    ),
    declared(
        *(
            "table 5",
            "the estimated loss, by the network's accuracy and the batch size",
            by_accuracy,
        ),
        (
            Column("accuracy", "accuracy", ".1%"),
            Column("mean_loss", "mean loss"),
            Column("loss_error_squared", "mean (l̂ − l)²", ".3f"),
            Column("loss_error", "mean |l̂ − l|", ".3f"),
            Column("loss_error_l2", "root of the sum of squares"),
        ),
        "../exact-features.md",
        published=tuple(
            Published(f"{figure:g}", {"batch": B, "attack": _accuracy(goal)})
            for B, row in paper.LOSS_ERRORS.items()
            for goal, figure in zip(paper.ACCURACIES, row, strict=True)
        ),
        published_title='published "average L2 error"',
        also="The published figures read as the mean of the squares of 100 batches. The network is "
        "a small ResNet, trained from its random weights on the photos (--cifar) until it has the "
        "accuracy on them, then in eval mode.",
    ),
    declared(
        *("table 6", "logits by batch size", logits_by_batch, FEATURES, "../exact-features.md"),
        published=_by("batch", "RGLA", paper.LOGITS_BY_BATCH),
        published_title="published ‖Ŷ′−Ŷ‖²",
        also=f"‖Ŷ′−Ŷ‖² is the sum over the batch, then the same for one sample. {REPEATED}",
    ),
    declared(
        *(
            "table 7",
            "six starts, and FGLA's features (published: all end alike; zeros and FGLA soonest)",
            by_start,
        ),
        (Column("arrived", "steps to 10× the last loss", ".0f", "median"), *FEATURES),
        "../exact-features.md",
        published=tuple(
            Published(paper.BY_START, {"attack": f"RGLA from {start}"}) for start in STARTS[:-1]
        ),
    ),
    declared(
        *("table 8", "duplicate labels, five attacks", by_duplicates, PICTURES),
        *("../exact-features.md", "matching.md", "../pictures.md"),
        published=(
            *_by("same", "RGLA", paper.RGLA_BY_DUPLICATES),
            *_by("same", "FGLA", paper.FGLA_BY_DUPLICATES),
            *(
                entry
                for name, row in paper.MATCHING_BY_DUPLICATES.items()
                for entry in _by("same", name.upper(), row)
            ),
        ),
        published_title="published PSNR",
        also={"small": SMALL_MATCHING, "paper": f"{RIVALS} {OTHER_INVERSE}"},
    ),
    declared(
        *("table 9", "true labels and iLRG's", by_labels, PICTURES, "../pictures.md"),
        published=(
            Published(
                paper.BY_LABELS["granted"], {"attack": "RGLA", "classes": NETWORK["paper"].classes}
            ),
            Published(
                paper.BY_LABELS["ilrg"],
                {"attack": "RGLA, labels by iLRG", "classes": NETWORK["paper"].classes},
            ),
        ),
    ),
    declared(
        *("table 10", "batch size", pictures_by_batch, PICTURES),
        *("../pictures.md", "../exact-features.md"),
        published=(
            *_by("batch", "RGLA", paper.RGLA_BY_BATCH),
            *_by("batch", "FGLA", paper.FGLA_BY_BATCH),
        ),
        also={
            "small": f"Batches end at 64, because 128 is above C = 100. {REPEATED}",
            "paper": REPEATED,
        },
    ),
    declared(
        *("table 11", "larger photos", by_side, PICTURES, "../pictures.md"),
        published=_by("size", "RGLA", paper.BY_SIDE),
        also={
            "small": (
                "192² in the place of 336²; the embedded inverse draws 128² alone, so larger "
                "photos have no PSNR."
            ),
            "paper": (
                "Photos of 336² are those of 224² enlarged, and the inverse of 224² reads their "
                "larger maps."
            ),
        },
    ),
    declared(
        *("table 12", "compression", by_pruning, PICTURES, "../defenses.md"),
        published=_by_defense(paper.BY_PRUNING),
        published_title="published PSNR",
    ),
)
