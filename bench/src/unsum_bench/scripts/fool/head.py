"""The head's own certificate: a list of numbers and choices, the batch with its update that it
describes, and one try at it."""

from __future__ import annotations

import copy
import math
import random
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum_bench.scripts.cases import Case
from unsum_bench.scripts.fool import objectives
from unsum_bench.scripts.fool.common import WEIGHTS, Genome, Try, relative_weights
from unsum_bench.scripts.fool.judge import Verdict, against_gradient, against_truth, nearest, timed
from unsum_bench.scripts.fool.objectives import CHANGES, LOSSES, OBJECTIVES, moved

# Gene → its range; whole numbers are rounded, and logarithms are of base ten.
GENES = {
    "classes": (2, 10), "batch": (1, 7), "inputs": (1, 24), "spread": (-7, 1), "margin": (0, 25),
    "weights": (-3, 1.5), "condition": (0, 10), "size": (-3, 3), "scale": (-3, 3),
    "noise": (-12, -1), "twin": (-9, 0), "blend": (0, 1), "smoothing": (0, 0.5), "foreign": (-8, 0),
    "flat": (-8, 0), "decay": (-6, 0), "hot": (-0.7, 0.7), "strength": (-7, 0.5),
}  # fmt: skip
# Where most answers are exact; the search sets out from there towards the border.
TAME_GENES = {
    "classes": (5, 10), "batch": (1, 4), "inputs": (6, 24), "spread": (-1, 0.5), "margin": (0, 3),
    "weights": (-0.7, 0.5), "condition": (0, 1.5), "size": (-1, 1), "scale": (-1, 1),
    "foreign": (-8, -6), "noise": (-12, -7), "twin": (-1.5, 0), "flat": (-2, 0),
    "strength": (-6, -1),
}  # fmt: skip
CHOICES = {
    "labels": ("distinct", "random", "half", "same"),
    "twins": ("none", "same label", "other label", "proportional"),
    # of every sample, itself counted: augmented views, P×K samplers
    "siblings": (1, 1, 1, 2, 2, 3),
    "flattened": (False, False, True),  # heads whose weights are nearly zero
    "client": ("plain", "plain", "plain", "decay", "autocast", "temperature", "uneven"),
    "weights are": WEIGHTS,
    "objective": OBJECTIVES,
    "scaled": (False, True),
    "noisy": (False, False, False, True),
    "bias": (True, True, False),
    "zero_bias": (False, False, True),
    "biased_gradient": (True, True, False),
    "relu": (True, False),
    "wide": (1, 1, 16),  # with many inputs a ReLU's zeros alone may separate the batch
    "dtype": ("float32", "float32", "float64", "float16", "bfloat16"),
    "soft": ("hard", "hard", "smooth", "mixup"),
    "forged": (
        "no",
        "no",
        "no",
        "mixed batches",
        "rotated",
        "low rank",
        "rows swapped",
        "one entry",
    ),
    "reduction": ("mean", "mean", "sum"),
    "told": ("nothing", "nothing", "batch size", "labels", "loss"),
    "method": ("exact", "exact", "exact", "adaptive", "auto"),
}
TAME_CHOICES = {
    "twins": ("none", "none", "same label", "other label", "proportional"),
    "noisy": (False, False, True),
    "forged": ("no", "no", "no", "no", "no", "mixed batches", "low rank", "rotated"),
    "dtype": ("float32", "float64"), "method": ("exact", "exact", "auto"), "bias": (True,),
    "flattened": (False,), "zero_bias": (False,), "biased_gradient": (True, True, False),
    "objective": ("plain",) * 20 + LOSSES + CHANGES,
}  # fmt: skip
KIND = (
    "soft",
    "forged",
    "twins",
    "siblings",
    "client",
    "dtype",
    "told",
    "weights are",
    "objective",
    "biased_gradient",
    "noisy",
)  # what makes a kind of case


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    """Anywhere in all ranges, or where most answers are exact."""
    genes, choices = (GENES | TAME_GENES, CHOICES | TAME_CHOICES) if tame else (GENES, CHOICES)
    return {name: chance.uniform(*ends) for name, ends in genes.items()} | {
        name: chance.choice(values) for name, values in choices.items()
    } | {"seed": chance.randrange(1 << 30)}  # fmt: skip


def child(first: Genome, second: Genome, chance: random.Random, step: float) -> Genome:
    """Some of both parents, or all of the first; a few numbers moved by about `step` of their
    range."""
    mixed = chance.random() < 0.3
    genome = {
        name: chance.choice((first[name], second[name])) if mixed else first[name] for name in first
    }
    for name, (low, high) in GENES.items():
        if chance.random() < 0.25:
            genome[name] = min(high, max(low, genome[name] + chance.gauss(0, step * (high - low))))
    for name, values in CHOICES.items():
        if chance.random() < 0.02 + 0.4 * step:
            genome[name] = chance.choice(values)
    if chance.random() < 0.5:
        genome["seed"] = chance.randrange(1 << 30)
    return genome


def told(genome: Genome) -> str:
    """What the attacker is told, if it is true: labels where they are hard, the loss where it had
    no temperature or weights."""
    heated = genome["client"] == "temperature" or genome.get("weights are") == "class weights"
    heated = heated or genome.get("objective", "plain") != "plain"
    untrue = {"labels": genome["soft"] != "hard", "loss": heated}
    return "nothing" if untrue.get(str(genome["told"]), False) else str(genome["told"])


def kind(genome: Genome) -> str:
    return ", ".join(
        f"{name} {value}"
        for name, value in (genome | {"told": told(genome)}).items()
        if name in KIND
    )


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    """The attack on the case, and whether what it claims is so."""
    case = build(genome)
    if not all(bool(torch.isfinite(t).all()) for t in case.update.gradients.values()):
        return Try(genome, "refused")
    with torch.no_grad():
        G = case.model(case.features).double().softmax(1) - case.targets

    def judge(leak: unsum.Leak) -> Verdict:
        return (
            against_truth(case, G, leak)
            if genome["forged"] == "no" or genome["client"] == "decay"
            else against_gradient(case, leak)
        )

    found = partial(nearest, case.features) if genome["forged"] == "no" else lambda _leak: math.nan
    return timed(genome, seconds, partial(_attacked, genome, case), judge, found)


def _attacked(genome: Genome, case: Case) -> unsum.Leak:
    known: dict[str, Any] = {}
    if told(genome) == "batch size":
        known["batch_size"] = len(case.features)
    if told(genome) == "labels":
        known["labels"] = case.targets.argmax(1)
    if told(genome) == "loss":
        known["loss"] = "cross-entropy"
    if genome["method"] == "auto":
        return unsum.attack(case.model, case.update, seed=0, **known)
    method = "exact" if told(genome) == "loss" else genome["method"]
    return unsum.separate(case.model, case.update, method, seed=0, **known)


def build(genome: Genome) -> Case:
    """The case that a genome describes; its update may be forged."""
    g = genome
    C, H, B = round(g["classes"]), round(g["inputs"]) * g.get("wide", 1), round(g["batch"])
    generator = torch.Generator().manual_seed(g["seed"])
    dtype = torch.float64 if g["dtype"] == "float64" else torch.float32
    features = _features(g, B, H, generator)
    labels = _labels(g, B, C, generator)
    features, labels = _siblings(g, *_twins(g, features, labels, C, generator), generator)
    model = _head(g, features, labels, C, generator).to(dtype)
    targets = _targets(g, labels, C)
    case = Case(
        model,
        _capture(model, features.to(dtype), targets.to(dtype), g),
        features.to(dtype),
        targets,
    )
    return replace(case, update=_changed(g, case, generator))


def _features(g: Genome, B: int, H: int, generator: torch.Generator) -> Tensor:
    shared = torch.randn(H, generator=generator, dtype=torch.float64)
    features = shared + 10 ** g["spread"] * torch.randn(
        B, H, generator=generator, dtype=torch.float64
    )
    features = features.relu() if g["relu"] else features
    return 10 ** g["size"] * features


def _labels(g: Genome, B: int, C: int, generator: torch.Generator) -> Tensor:
    if g["labels"] == "distinct":
        return torch.randperm(C, generator=generator).repeat(1 + B // C)[:B]
    labels = torch.randint(C, (B,), generator=generator)
    labels[: {"same": B, "half": (B + 1) // 2}.get(g["labels"], 0)] = labels[0]
    return labels


def _twins(
    g: Genome, features: Tensor, labels: Tensor, C: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
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


def _siblings(
    g: Genome, features: Tensor, labels: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Every sample with others of its own label around it."""
    n = g["siblings"]
    if n == 1:
        return features, labels
    distance = 0.0 if g["twin"] < -8.5 else 10 ** g["twin"]
    steps = torch.randn(
        n * len(features), features.shape[1], generator=generator, dtype=torch.float64
    )
    steps = steps / steps.norm(dim=1, keepdim=True).clamp_min(1e-30)
    many = features.repeat(n, 1)
    return many + distance * many.norm(dim=1, keepdim=True) * steps, labels.repeat(n)


def _head(
    g: Genome, features: Tensor, labels: Tensor, C: int, generator: torch.Generator
) -> nn.Linear:
    H = features.shape[1]
    W = torch.randn(C, H, generator=generator, dtype=torch.float64) / H**0.5
    U, S, V = torch.linalg.svd(W, full_matrices=False)
    falling = 10 ** (-g["condition"] * torch.linspace(0, 1, len(S), dtype=torch.float64))
    W = 10 ** (g["weights"] - g["size"]) * (U * S * falling) @ V  # logits of a size of their own
    own = features - features.mean(0)
    for row, label in zip(
        own / own.square().sum(1, keepdim=True).clamp_min(1e-30), labels, strict=True
    ):
        W[label] += g["margin"] * row
    model = nn.Linear(H, C, bias=g["bias"]).double()
    with torch.no_grad():
        model.weight.copy_(W * (10 ** g["flat"] if g["flattened"] else 1.0))
        if model.bias is not None:
            bias = 0.1 * torch.randn(C, generator=generator, dtype=torch.float64)
            model.bias.copy_(torch.zeros_like(bias) if g["zero_bias"] else bias)
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
    heat = 10 ** g["hot"] if g["client"] == "temperature" else 1.0
    odd, strength = g.get("objective", "plain"), 10 ** g.get("strength", 0)
    sent = copy.deepcopy(model)
    if odd == "other weights":
        moved(model, strength, torch.Generator().manual_seed(g["seed"] + 3))
    losses = objectives.losses(odd, strength, model(features) / heat, targets)
    weights = torch.ones_like(losses)
    if g["client"] == "uneven":  # two micro-batches of unequal size, averaged alike
        weights[: len(weights) // 2 + 1] *= 3
    weights = weights * relative_weights(
        g.get("weights are", "alike"), targets.argmax(1), g["seed"]
    ).to(losses)
    ((losses * weights).sum() / (_total(g, weights) if g["reduction"] == "mean" else 1)).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.load_state_dict(sent.state_dict())
    gradients = objectives.changed(odd, strength, gradients, model)
    if g["client"] == "decay":
        gradients = {
            name: gradient + 10 ** g["decay"] * dict(model.named_parameters())[name].detach()
            for name, gradient in gradients.items()
        }
    if not g["biased_gradient"]:
        gradients.pop("bias", None)
    return unsum.Update(gradients, reduction=g["reduction"])


def _total(g: Genome, weights: Tensor) -> Tensor | int:
    """What a mean divides by: two clients in one sum are two means."""
    return len(weights) if g.get("weights are") == "two clients" else weights.sum()


def _changed(g: Genome, case: Case, generator: torch.Generator) -> unsum.Update:
    """Forged, scaled, noisy and rounded, in this order."""
    update = _forged(g, case, generator)
    if g["scaled"]:
        update = update.map(lambda _name, tensor: tensor * 10 ** g["scale"])
    if g["noisy"]:
        size = max(float(update.gradients["weight"].abs().max()), 1e-30)
        update = update.map(
            lambda _name, t: (
                t
                + 10 ** g["noise"]
                * size
                * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
            )
        )
    if g["client"] == "autocast":
        update = update.map(lambda _name, tensor: tensor.bfloat16().to(tensor.dtype))
    if g["dtype"] in ("float16", "bfloat16"):
        update = update.map(lambda _name, tensor: tensor.to(getattr(torch, g["dtype"])))
    return update


def _forged(g: Genome, case: Case, generator: torch.Generator) -> unsum.Update:
    """A gradient that no batch of this kind sends: parts of two, or a matrix that only looks like
    one."""
    kind, update, part = g["forged"], case.update, 10 ** g["foreign"]
    if g["client"] == "decay":  # the claimed batch alone would not send it
        return update
    W = update.gradients["weight"]
    if kind == "no":
        return update
    if kind == "mixed batches":
        other = build(
            g
            | {
                "forged": "no",
                "seed": g["seed"] + 1,
                "noisy": False,
                "scale": 0.0,
                "dtype": "float64",
                "twins": "none",
            }
        )
        return update.map(
            lambda name, t: (
                t + part * other.update.gradients[name].to(t)
                if name in other.update.gradients
                else t
            )
        )
    if kind == "rotated":
        turn = torch.linalg.qr(
            torch.eye(W.shape[1]).double()
            + part * torch.randn(W.shape[1], W.shape[1], generator=generator).double()
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
