"""The whole field: every attack of every registry against every defense, plug-ins included.

All attacks are granted the batch size, as a server that plans its rounds knows it; `crowded` has
the labels. They run on one network and batch, except those that are for a single sample or for
fully connected layers: the table says so. One that lacks something (a generator, say) keeps its
rows, and they say what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from unsum.active import SERVERS
from unsum.defend import DEFENSES, Defense
from unsum.defend.defense import has_strength
from unsum.labels import LABEL_RULES
from unsum.leak import Leak
from unsum.match import MATCHERS
from unsum.peel import PEELERS
from unsum.registry import Registry, from_outside
from unsum.separate import SEPARATORS
from unsum.separate.options import options_of
from unsum_bench.declare import (
    NONE,
    Attack,
    Experiment,
    Family,
    Granted,
    Grid,
    Network,
    Size,
    Value,
)
from unsum_bench.experiments import common

SMOKE_DEFENSES = (NONE, "noise:0.01", "clip:4", "prune:0.9")
STRENGTHS = {  # where the papers and our own sweeps have them; others stand at their example
    "noise": 0.01,
    "laplace": 0.01,
    "clip": 4,
    "clip-layers": 1,
    "prune": 0.9,
    "prune-global": 0.9,
    "mixup": 1,
    "smooth": 0.1,
    "qsgd": 64,
}
# methods whose authors have one sample in mind
ONE_SAMPLE = ("soft", "phong", "idlg", "phong-input")
NEED_LABELS = ("crowded",)  # and refuse to begin without them
# of methods that iterate; others take what they take by default
STEPS: Mapping[Size, Mapping[str, int]] = {
    "smoke": {"rgla": 200, "rgla-newton": 20, "lti": 20}
    | dict.fromkeys(("ggl", "dlg", "idlg", "soft-g", "soft-f", "soft-gf"), 2),
    "small": {
        "rgla": 5000,
        "lti": 200,
        "ggl": 50,
        "dlg": 10,
        "idlg": 40,
        "soft-g": 10,
        "soft-f": 10,
        "soft-gf": 10,
    },
    "paper": {},
}
OTHER_STEPS: Mapping[Size, int | None] = {"smoke": 5, "small": 300, "paper": None}
FEWER: Mapping[Size, dict[str, int]] = {  # other options that decide how long a method takes
    "smoke": {
        "restarts": 1,
        "tries": 1,
        "weight_steps": 5,
        "batches": 32,
        "dimension": 64,
        "hidden": 64,
    },
    "small": {"restarts": 1, "weight_steps": 300, "batches": 512, "dimension": 1024, "hidden": 256},
    "paper": {},
}
EXTRA: Mapping[str, tuple[tuple[str, Value], ...]] = {"hcgla": (("denoiser", "median"),)}


def grid(size: Size, attack: Attack) -> Grid:
    """Where an attack is tried, and on how many samples."""
    side, classes, several = (16, 20, 4) if size == "smoke" else (32, 100, 8)
    network = Network("plain" if attack.family == "peeler" else "conv", side, classes)
    return Grid(
        (network,),
        (attack,),
        (1 if attack.name in ONE_SAMPLE else several,),
        defenses=defenses(size),
    )


def attacks(size: Size) -> Iterator[Attack]:
    """Of all registries, ours and others': what `unsum list` shows, with the steps of this size."""
    for separator in SEPARATORS:
        own = options_of(cast("Callable[..., Leak]", separator.method))
        granted: Granted = "labels" if separator.name in NEED_LABELS else "batch size"
        yield Attack(separator.name, _steps(separator.name, own, size), granted)
    for matcher in MATCHERS:
        options = (
            *_steps(matcher.name, list(matcher.method.options), size),
            *EXTRA.get(matcher.name, ()),
        )
        yield Attack(matcher.name, options, "batch size")
    families: dict[Family, Registry[Any]] = {
        "peeler": PEELERS,
        "server": SERVERS,
        "labels": LABEL_RULES,
    }
    for family, registry in families.items():
        for entry in registry:
            yield Attack(entry.name, family=family, granted="batch size")


def _steps(name: str, options: list[str], size: Size) -> tuple[tuple[str, Value], ...]:
    chosen = STEPS[size].get(
        name, OTHER_STEPS[size] if name in [entry.name for entry in MATCHERS] else None
    )
    found = FEWER[size] | ({"steps": chosen} if chosen is not None else {})
    return tuple(sorted((option, value) for option, value in found.items() if option in options))


def defenses(size: Size) -> tuple[str, ...]:
    """Every defense at its strength; of ours only four in the smoke run."""
    every = {entry.name: strength(entry.name, entry.method) for entry in DEFENSES}
    if size == "smoke":
        return (*SMOKE_DEFENSES, *(every[entry.name] for entry in DEFENSES if from_outside(entry)))
    return (NONE, *every.values())


def strength(name: str, kind: type[Defense]) -> str:
    """As the command line writes it; where we name none, the one that the defense gives as an
    example."""
    return f"{name}:{STRENGTHS.get(name, kind.example):g}" if has_strength(kind) else name


def grids(size: Size) -> tuple[Grid, ...]:
    return tuple(grid(size, attack) for attack in attacks(size))


_PLAIN = (
    (
        "`hcgla` has a median filter for its denoiser; `gias` and `ggl` have no generator unless "
        "--option gives one."
    ),
    "`crowded` is granted the labels, all others the batch size. Under `secagg` the server sees "
    "the mean of four clients' updates, and the samples of all four are counted.",
)


EXPERIMENT = Experiment(
    name="field",
    title="The field: every attack against every defense",
    paper="field",
    grids=grids,
    columns=(
        common.LEAKAGE,
        common.PSNR,
        common.LABELS,
        common.COSINE,
        common.SECONDS,
        common.PROCESSOR,
    ),
    deviations={
        "smoke": (
            "Iterative attacks take a handful of their steps; their rows show that they run, not "
            "what they can do.",
        ),
        "small": (
            "A network of two convolutions (fully connected layers for peelers), 32² photos, C = "
            "100, B = 8 (one sample where the method is for one); gradient matching takes 10 (of "
            "L-BFGS) to 300 steps, RGLA 5000 of its 20 000. One batch a cell.",
            *_PLAIN,
        ),
        "paper": (
            (
                "The network, photos and batch of size small with every method's own number of "
                "steps. One batch a cell."
            ),
            *_PLAIN,
        ),
    },
    across="defense",
    see=("../../attacks.md", "../../defenses.md"),
)
