"""Can the certificate be fooled? Evolution over cases, rewarded for every claim of "exact" that is not so.

uv run python benchmarks/fool_certificate.py --tries 20000 --seed 1 --json fooled.json

A case is a list of numbers: sizes, conditioning of the head, scale of its logits, near-twins, noise, dtype, forged parts. Fitter
ones are those whose true error is larger than the attack predicts; the fittest have children. A try counts as fooled when the
answer claims to be exact and

- a feature of a sample is off by more than 1 %, or a sample is missing or made up; or
- a label (or an entry of a soft one) is wrong; or
- the gradient came from no batch at all, and the claimed batch does not even send it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import unsum
from cases import Case
from unsum.errors import UnsumError
from unsum.separate.exact import search as exact_search

FALSE_CLAIM, WRONG_TARGET, UNEXPLAINED = 1e-2, 1e-2, 1e-2
TRACE = 1e-6  # of the largest sample's own gradient: the precision of float32, and less than any noise here
_POPULATION, _TOURNAMENT = 40, 4
_FRESH = 0.25  # share of children without parents

# Gene → its range; whole numbers are rounded, and logarithms are of base ten.
GENES = {
    "classes": (2, 10), "batch": (1, 7), "inputs": (1, 24), "spread": (-7, 1), "margin": (0, 25), "weights": (-3, 1.5),
    "condition": (0, 10), "size": (-3, 3), "scale": (-3, 3), "noise": (-12, -1), "twin": (-9, 0), "blend": (0, 1),
    "smoothing": (0, 0.5), "foreign": (-8, 0),
}  # fmt: skip
CHOICES = {
    "labels": ("distinct", "random", "half", "same"),
    "twins": ("none", "same label", "other label", "proportional"),
    "noisy": (False, False, False, True),
    "bias": (True, True, False),
    "biased_gradient": (True, True, False),
    "relu": (True, False),
    "wide": (1, 1, 16),  # with many inputs a ReLU's zeros alone may separate the batch
    "dtype": ("float32", "float32", "float64", "float16", "bfloat16"),
    "soft": ("hard", "hard", "smooth", "mixup"),
    "forged": ("no", "no", "no", "mixed batches", "rotated", "low rank", "rows swapped", "one entry"),
    "reduction": ("mean", "mean", "sum"),
    "told": ("nothing", "nothing", "batch size", "labels"),
    "method": ("exact", "exact", "exact", "adaptive", "auto"),
}

Genome = dict[str, Any]


@dataclass(frozen=True)
class Try:
    """One case and what came of it."""

    genome: Genome
    fitness: float
    claimed: bool
    error: float
    label_error: float
    fooled: str = ""  # how, if it was
    seconds: float = 0.0


@dataclass
class Record:
    tries: int = 0
    claimed: int = 0
    refused: int = 0
    crashed: list[str] = field(default_factory=list)
    fooled_features: list[Genome] = field(default_factory=list)
    fooled_labels: list[Genome] = field(default_factory=list)
    seconds: float = 0.0


def random_genome(chance: random.Random) -> Genome:
    return {name: chance.uniform(*ends) for name, ends in GENES.items()} | {
        name: chance.choice(values) for name, values in CHOICES.items()
    } | {"seed": chance.randrange(1 << 30)}  # fmt: skip


def child(first: Genome, second: Genome, chance: random.Random) -> Genome:
    genome = {name: chance.choice((first[name], second[name])) for name in first}
    for name, (low, high) in GENES.items():
        if chance.random() < 0.25:
            genome[name] = min(high, max(low, genome[name] + chance.gauss(0, 0.15 * (high - low))))
    for name, values in CHOICES.items():
        if chance.random() < 0.08:
            genome[name] = chance.choice(values)
    if chance.random() < 0.5:
        genome["seed"] = chance.randrange(1 << 30)
    return genome


def build(genome: Genome) -> Case:
    """The case that a genome describes; its update may be forged."""
    g = genome
    C, H, B = round(g["classes"]), round(g["inputs"]) * g.get("wide", 1), round(g["batch"])
    generator = torch.Generator().manual_seed(g["seed"])
    dtype = torch.float64 if g["dtype"] == "float64" else torch.float32
    features = _features(g, B, H, generator)
    labels = _labels(g, B, C, generator)
    features, labels = _twins(g, features, labels, C, generator)
    model = _head(g, features, labels, C, generator).to(dtype)
    targets = _targets(g, labels, C)
    case = Case(model, _capture(model, features.to(dtype), targets.to(dtype), g), features.to(dtype), targets)
    return replace(case, update=_changed(g, case, generator))


def _features(g: Genome, B: int, H: int, generator: torch.Generator) -> Tensor:
    shared = torch.randn(H, generator=generator, dtype=torch.float64)
    features = shared + 10 ** g["spread"] * torch.randn(B, H, generator=generator, dtype=torch.float64)
    features = features.relu() if g["relu"] else features
    return 10 ** g["size"] * features


def _labels(g: Genome, B: int, C: int, generator: torch.Generator) -> Tensor:
    if g["labels"] == "distinct":
        return torch.randperm(C, generator=generator).repeat(1 + B // C)[:B]
    labels = torch.randint(C, (B,), generator=generator)
    labels[: {"same": B, "half": (B + 1) // 2}.get(g["labels"], 0)] = labels[0]
    return labels


def _twins(g: Genome, features: Tensor, labels: Tensor, C: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One more sample, nearly or quite like the first."""
    if g["twins"] == "none":
        return features, labels
    distance = 0.0 if g["twin"] < -8.5 else 10 ** g["twin"]
    if g["twins"] == "proportional":
        twin = features[0] * (1 + distance)
    else:
        step = torch.randn(features.shape[1], generator=generator, dtype=torch.float64)
        twin = features[0] + distance * features[0].norm() * step / step.norm().clamp_min(1e-30)
    label = labels[0] if g["twins"] == "same label" else (labels[0] + 1) % C
    return torch.cat([features, twin[None]]), torch.cat([labels, label[None]])


def _head(g: Genome, features: Tensor, labels: Tensor, C: int, generator: torch.Generator) -> nn.Linear:
    H = features.shape[1]
    W = torch.randn(C, H, generator=generator, dtype=torch.float64) / H**0.5
    U, S, V = torch.linalg.svd(W, full_matrices=False)
    falling = 10 ** (-g["condition"] * torch.linspace(0, 1, len(S), dtype=torch.float64))
    W = 10 ** (g["weights"] - g["size"]) * (U * S * falling) @ V  # logits of a size of their own
    own = features - features.mean(0)
    for row, label in zip(own / own.square().sum(1, keepdim=True).clamp_min(1e-30), labels, strict=True):
        W[label] += g["margin"] * row
    model = nn.Linear(H, C, bias=g["bias"]).double()
    with torch.no_grad():
        model.weight.copy_(W)
        if model.bias is not None:
            model.bias.copy_(0.1 * torch.randn(C, generator=generator, dtype=torch.float64))
    return model


def _targets(g: Genome, labels: Tensor, C: int) -> Tensor:
    rows = nn.functional.one_hot(labels, C).double()
    if g["soft"] == "mixup":
        rows = (0.5 + 0.5 * g["blend"]) * rows + (0.5 - 0.5 * g["blend"]) * rows.roll(1, 0)
    if g["soft"] == "smooth":
        rows = rows * (1 - g["smoothing"]) + g["smoothing"] / C
    return rows


def _capture(model: nn.Linear, features: Tensor, targets: Tensor, g: Genome) -> unsum.Update:
    model.zero_grad()
    nn.functional.cross_entropy(model(features), targets, reduction=g["reduction"]).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    if not g["biased_gradient"]:
        gradients.pop("bias", None)
    return unsum.Update(gradients, reduction=g["reduction"])


def _changed(g: Genome, case: Case, generator: torch.Generator) -> unsum.Update:
    """Forged, scaled, noisy and rounded, in this order."""
    update = _forged(g, case, generator).map(lambda _name, tensor: tensor * 10 ** g["scale"])
    if g["noisy"]:
        size = max(float(update.gradients["weight"].abs().max()), 1e-30)
        update = update.map(
            lambda _name, t: (
                t + 10 ** g["noise"] * size * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
            )
        )
    if g["dtype"] in ("float16", "bfloat16"):
        update = update.map(lambda _name, tensor: tensor.to(getattr(torch, g["dtype"])))
    return update


def _forged(g: Genome, case: Case, generator: torch.Generator) -> unsum.Update:
    """A gradient that no batch of this kind sends: parts of two, or a matrix that only looks like one."""
    kind, update, part = g["forged"], case.update, 10 ** g["foreign"]
    W = update.gradients["weight"]
    if kind == "no":
        return update
    if kind == "mixed batches":
        other = build(
            g
            | {"forged": "no", "seed": g["seed"] + 1, "noisy": False, "scale": 0.0, "dtype": "float64", "twins": "none"}
        )
        return update.map(
            lambda name, t: t + part * other.update.gradients[name].to(t) if name in other.update.gradients else t
        )
    if kind == "rotated":
        turn = torch.linalg.qr(
            torch.eye(W.shape[1]).double() + part * torch.randn(W.shape[1], W.shape[1], generator=generator).double()
        )[0]
        return update.map(lambda name, t: (t.double() @ turn).to(t) if name == "weight" else t)
    if kind == "low rank":
        left = torch.randn(W.shape[0], 2, generator=generator)
        right = torch.randn(2, W.shape[1], generator=generator)
        foreign = (left - left.mean(0)) @ right * W.norm() / (left.norm() * right.norm())
        return update.map(lambda name, t: t + part * foreign.to(t) if name == "weight" else t)
    if kind == "rows swapped":
        order = torch.randperm(W.shape[0], generator=generator)
        return update.map(lambda _name, t: t[order])
    changed = W.clone()
    changed.view(-1)[int(torch.randint(W.numel(), (), generator=generator))] += part * W.abs().max()
    return update.map(lambda name, t: changed if name == "weight" else t)


def attempt(genome: Genome) -> Try:
    case = build(genome)
    start = time.perf_counter()
    if not all(bool(torch.isfinite(t).all()) for t in case.update.gradients.values()):
        return Try(genome, -10.0, False, math.inf, math.inf)
    known: dict[str, Any] = {}
    if genome["told"] == "batch size":
        known["batch_size"] = len(case.features)
    if genome["told"] == "labels" and genome["soft"] == "hard":
        known["labels"] = case.targets.argmax(1)
    try:
        if genome["method"] == "auto":
            leak = unsum.attack(case.model, case.update, seed=0, **known)
        else:
            leak = unsum.separate(case.model, case.update, genome["method"], seed=0, **known)
    except UnsumError:
        return Try(genome, -9.0, False, math.inf, math.inf, seconds=time.perf_counter() - start)
    return _judged(genome, case, leak, time.perf_counter() - start)


def _judged(genome: Genome, case: Case, leak: unsum.Leak, seconds: float) -> Try:
    if genome["forged"] != "no":
        error, label_error = _unexplained(case, leak), 0.0
        bad = "a batch that does not send the gradient" if error > UNEXPLAINED else ""
    else:
        case = _with_trace(case)
        if len(case.features) == 0:  # nobody sent anything: every claim would be false
            return Try(genome, -5.0, leak.exact, math.inf, math.inf, "features" if leak.exact else "", seconds)
        error, label_error = case.worst_error(leak), _target_error(case, leak)
        bad = "features" if error > FALSE_CLAIM else "labels" if label_error > WRONG_TARGET else ""
    worst = max(error, label_error)
    fitness = math.log10(max(worst, 1e-12)) - math.log10(min(max(leak.predicted_error, 1e-12), 1e3))
    fitness = min(fitness, 10.0) + (20.0 if leak.exact and bad else 2.0 if leak.exact else 0.0)
    return Try(genome, fitness, leak.exact, error, label_error, bad if leak.exact else "", seconds)


def _with_trace(case: Case) -> Case:
    """The case without samples that the model predicts so well that they send nothing: nobody can find those."""
    with torch.no_grad():
        G = case.model(case.features).double().softmax(1) - case.targets
    sent = G.norm(dim=1) * case.features.double().norm(dim=1)
    kept = (sent > TRACE * sent.max()) & (sent > 0)
    return replace(case, features=case.features[kept], targets=case.targets[kept])


def _unexplained(case: Case, leak: unsum.Leak) -> float:
    """How much of the gradient the claimed batch leaves, relative: its own gradient, times the scale it claims."""
    G = leak.logits.softmax(1) - leak.targets
    factor = leak.scale / (leak.batch_size if case.update.reduction == "mean" else 1)
    sent = case.update.gradients["weight"].double()
    return float((factor * G.T @ leak.features.double() - sent).norm() / sent.norm().clamp_min(1e-300))


def _target_error(case: Case, leak: unsum.Leak) -> float:
    """The largest difference between a found sample's targets and those of the true samples that it stands for, in the mean.

    Several samples with equal features send what one of their mean target sends: that they are several is no mistake's.
    """
    true, found = case.features.double(), leak.features.double()
    cost = torch.cdist(true, found) / true.norm(dim=1, keepdim=True).clamp_min(1e-300)
    if leak.batch_size == len(true):
        pairs = cost + torch.cdist(case.targets, leak.targets.double())
        owner = torch.as_tensor(linear_sum_assignment(pairs.nan_to_num(1e9))[1])
    else:
        owner = cost.argmin(1)
    errors = []
    for i in range(leak.batch_size):
        mean = case.targets[owner == i].mean(0)
        errors.append(float((leak.targets[i].double() - mean).abs().max()) if bool((owner == i).any()) else 1.0)
    return max(errors)


def evolve(tries: int, seed: int, say: Any = None, minutes: float = math.inf) -> Record:
    chance, record = random.Random(seed), Record()
    population: list[Try] = []
    start = time.perf_counter()
    while record.tries < tries and time.perf_counter() - start < 60 * minutes:
        genome = _next(population, chance)
        try:
            tried = attempt(genome)
        except Exception as error:  # a crash is a finding of another kind
            record.tries += 1
            if len(record.crashed) < 20:
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(where.filename).name}:{where.lineno}"
                record.crashed.append(f"{type(error).__name__} at {place}: {str(error)[:120]} in {json.dumps(genome)}")
            continue
        record.tries += 1
        record.claimed += tried.claimed
        record.refused += tried.fitness <= -9
        if tried.fooled:
            (record.fooled_labels if tried.fooled == "labels" else record.fooled_features).append(
                tried.genome | {"error": tried.error, "label_error": tried.label_error, "how": tried.fooled}
            )
        population = sorted([*population, tried], key=lambda one: -one.fitness)[:_POPULATION]
        if record.tries % 400 == 0:  # the fittest leave, lest all of the search circles around them
            population = population[_POPULATION // 2 :]
        if say is not None and record.tries % 100 == 0:
            say(record, population[0])
    record.seconds = time.perf_counter() - start
    return record


def _next(population: list[Try], chance: random.Random) -> Genome:
    if len(population) < _TOURNAMENT or chance.random() < _FRESH:
        return random_genome(chance)
    first, second = (max(chance.sample(population, _TOURNAMENT), key=lambda one: one.fitness) for _ in range(2))
    return child(first.genome, second.genome, chance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after these, however many tries were made"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--patience", type=float, default=0.3, help="seconds for further starts, instead of the solver's 8"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    exact_search._PATIENCE = options.patience

    def say(record: Record, best: Try) -> None:
        print(
            f"{record.tries} tries, {record.claimed} claims, {len(record.fooled_features)} + {len(record.fooled_labels)} fooled, "
            f"{len(record.crashed)} crashed; fittest {best.fitness:.2f}",
            file=sys.stderr,
            flush=True,
        )

    record = evolve(options.tries, options.seed, say, options.minutes)
    text = json.dumps({"seed": options.seed, **asdict(record)}, indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    print(
        f"{record.tries:,} tries in {record.seconds:.0f} s, {record.claimed:,} of them claimed to be exact: "
        f"{len(record.fooled_features)} with wrong features, {len(record.fooled_labels)} with wrong labels; "
        f"{len(record.crashed)} crashed."
    )


if __name__ == "__main__":
    main()
