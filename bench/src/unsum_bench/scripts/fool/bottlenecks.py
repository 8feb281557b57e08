"""Can a claim about a bottleneck be fooled? The cases of `maps`, all of them bottlenecks: what the
block read is claimed, too.

What is bred: twins and mixtures, a second sample of next to no weight, statistics and modes that
are declared wrongly, equal labels, two classes, more samples than classes, channels that are
positive throughout, so that BatchNorm hides their mean.
"""

from __future__ import annotations

import random

from unsum_bench.scripts.fool.common import Genome
from unsum_bench.scripts.fool.maps import (
    CHOICES,
    GENES,
    ORDINARY,
    ORDINARY_CHOICES,
    Ranges,
    attempt,
    draw_genome,
    kind,
)

__all__ = ["attempt", "kind", "random_genome"]

_RANGES = Ranges(
    GENES | {"channels": (15.51, 48.49), "classes": (1.51, 8.49)},
    CHOICES
    | {
        "block": ("bottleneck",),
        "norm": ("batch",),
        "activation": ("relu",),
        "bias": (False,),
        "side": (2, 3, 3),
        "told": ("batch size", "batch size", "batch size", "nothing"),
        "lifted": (0.0, 0.0, 0.0, 1.0, 3.0),
    },
    ORDINARY | {"channels": (27.51, 48.49), "classes": (1.51, 6.49)},
    ORDINARY_CHOICES | {"told": ("batch size",), "lifted": (0.0,)},
)


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    return draw_genome(chance, _RANGES, tame=tame)
