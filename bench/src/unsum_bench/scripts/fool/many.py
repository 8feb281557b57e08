"""Many at once: the head's cases among other updates of the same model, solved and doubted in the
batched way alone.

Whoever gets no answer there is attacked by itself, which the path `head` searches; so no answer
counts as not claimed here.
"""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import torch

import unsum
from unsum.attack.at_once import LastLayer, attack_at_once
from unsum.attack.options import AttackOptions
from unsum_bench.scripts.cases import Case
from unsum_bench.scripts.fool import head
from unsum_bench.scripts.fool.common import Genome, Try
from unsum_bench.scripts.fool.judge import Verdict, against_gradient, against_truth, timed

# The batched way is for more classes than four times the samples, for both gradients and nothing
# but rounding.
_CLASSES, _MOST = (5, 40), (1, 8)
_FIXED: dict[str, Any] = {
    "bias": True,
    "biased_gradient": True,
    "reduction": "mean",
    "method": "many",
}
_LIKELY: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "float32", "float64"), "noisy": (False, False, False, False, False, True),
    "scaled": (False, False, False, False, False, True),
    "soft": ("hard", "hard", "hard", "hard", "smooth", "mixup"),
    "told": ("nothing", "nothing", "nothing", "batch size"),
    "client": ("plain", "plain", "plain", "temperature", "uneven"),
}  # fmt: skip
_TAME: dict[str, tuple[Any, ...]] = {
    "noisy": (False,), "scaled": (False,), "soft": ("hard",), "client": ("plain",), "wide": (16,),
    "siblings": (1,), "forged": ("no", "no", "no", "mixed batches", "low rank"),
    "twins": ("none", "none", "same label", "other label"),
}  # fmt: skip
_NEIGHBORS = 3  # updates of the same model around the case


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    """The head's, in wider ranges; a tame one has features enough, and four classes for each of its
    samples."""
    genome = _usual(head.random_genome(chance, tame=tame), chance)
    if tame:
        drawn = {name: chance.choice(values) for name, values in _TAME.items()}
        return (
            genome
            | drawn
            | {"classes": chance.uniform(20, _CLASSES[1]), "batch": chance.uniform(1, 4)}
        )
    return genome | {"classes": chance.uniform(*_CLASSES), "batch": chance.uniform(*_MOST)}


def _usual(genome: Genome, chance: random.Random) -> Genome:
    drawn = {
        name: genome[name] if genome[name] in values else chance.choice(values)
        for name, values in _LIKELY.items()
    }
    return genome | drawn | _FIXED


def child(first: Genome, second: Genome, chance: random.Random, step: float) -> Genome:
    genome = _usual(head.child(first, second, chance, step), chance)
    # the head's own ranges are narrower
    for name, (low, high) in (("classes", _CLASSES), ("batch", _MOST)):
        moved = first[name] + (
            chance.gauss(0, step * (high - low)) if chance.random() < 0.25 else 0.0
        )
        genome[name] = min(high, max(low, moved))
    return genome


kind = head.kind


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    case = head.build(genome)
    if not all(bool(torch.isfinite(t).all()) for t in case.update.gradients.values()):
        return Try(genome, "refused")
    with torch.no_grad():
        G = case.model(case.features).double().softmax(1) - case.targets

    def judge(leak: unsum.Leak) -> Verdict:
        if not leak.exact:
            return math.inf, math.inf, ""
        return (
            against_truth(case, G, leak)
            if genome["forged"] == "no"
            else against_gradient(case, leak)
        )

    return timed(genome, seconds, partial(_attacked, genome, case), judge)


def _attacked(genome: Genome, case: Case) -> unsum.Leak:
    """The answer to the case, which stands somewhere among others."""
    size = len(case.features) if head.told(genome) == "batch size" else None
    layer, around = LastLayer.of(case.model), _neighbors(genome, case)
    place = genome["seed"] % (len(around) + 1)
    updates = [*around[:place], case.update, *around[place:]]
    if not all(layer.is_usual(update) for update in updates):
        return _unclaimed(case)
    options = AttackOptions("exact", batch_size=size, pictures=False, device=torch.device("cpu"))
    return attack_at_once(case.model, updates, options)[place] or _unclaimed(case)


def _neighbors(genome: Genome, case: Case) -> list[unsum.Update]:
    """Batches of the same size, each sample the mixture of two of the case's, under labels of their
    own."""
    generator = torch.Generator().manual_seed(genome["seed"] + 1)
    B, C = len(case.features), case.model.out_features
    made = []
    for _ in range(_NEIGHBORS):
        mixing = torch.rand(B, B, generator=generator).to(case.features)
        labels = torch.randint(C, (B,), generator=generator)
        made.append(
            unsum.capture(
                case.model, (mixing / mixing.sum(1, keepdim=True)) @ case.features, labels
            )
        )
    return made


def _unclaimed(case: Case) -> unsum.Leak:
    nothing = case.targets.double()
    return unsum.Leak("many", nothing, nothing, case.features, 1.0, math.inf, False)
