"""Other losses: declared rightly or wrongly, or left to be recognized, on paired samples and flat
heads."""

from __future__ import annotations

import math
import random
from functools import partial

import torch
from torch import Tensor, nn

import unsum
from unsum.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    Focal,
    Loss,
    SquaredError,
    WeightedCrossEntropy,
)
from unsum_bench.scripts.cases import Case
from unsum_bench.scripts.fool.common import WEIGHTS, Genome, Try, relative_weights
from unsum_bench.scripts.fool.judge import against_truth, nearest, timed

NAMES = ("bce", "mse", "focal", "weighted", "weighted and smoothed", "cross-entropy")


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    pick = chance.choice
    return {
        "classes": chance.randint(6 if tame else 2, 12), "batch": chance.randint(1, 5),
        "inputs": pick((6, 12, 24, 96)), "spread": chance.uniform(-0.5 if tame else -3, 0.5),
        "weights": chance.uniform(-0.5 if tame else -8, 0.7),
        "bias": pick((True, True, "zero", False)), "biased_gradient": chance.random() < 0.8,
        "relu": chance.random() < 0.5, "siblings": pick((1, 1, 2, 2, 3)),
        "apart": chance.uniform(-5, -0.3), "labels": pick(("distinct", "random", "same")),
        "positives": chance.uniform(0.1, 0.9),
        "scale": pick((0.0, 0.0, 1.0)) * chance.uniform(-2, 2),
        "targets": pick((1.0, 1.0, 1.0, 0.5, 3.0)),
        "dtype": pick(("float32", "float32", "float64", "float16", "bfloat16")),
        "noise": pick((-math.inf, -math.inf, chance.uniform(-8, -2))),
        "reduction": pick(("mean", "mean", "sum")), "loss": pick(NAMES),
        "declared": pick(("right", "right", "right", "wrong", "nothing")), "wrong": pick(NAMES),
        "gamma": pick((1.0, 2.0, 3.0)), "told": pick(("nothing", "nothing", "batch size")),
        "weights are": pick(WEIGHTS), "seed": chance.randrange(1 << 30),
    }  # fmt: skip


def kind(genome: Genome) -> str:
    return ", ".join(
        f"{name} {genome[name]}"
        for name in ("loss", "declared", "siblings", "bias", "dtype", "weights are")
    )


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    case, loss = build(genome)
    if not all(bool(torch.isfinite(t).all()) for t in case.update.gradients.values()):
        return Try(genome, "refused")
    with torch.no_grad():
        G = loss.gradient(case.model(case.features).double(), case.targets.double())
    size = genome["targets"] if genome["loss"] == "mse" else 1.0
    shown = Case(case.model, case.update, case.features, case.targets / size)
    judges = partial(against_truth, shown, G), partial(nearest, case.features)
    return timed(genome, seconds, partial(_attacked, genome, case), *judges)


def _attacked(genome: Genome, case: Case) -> unsum.Leak:
    known = {"batch_size": len(case.features)} if genome["told"] == "batch size" else {}
    C = case.model.out_features
    if genome["declared"] == "nothing":
        return unsum.separate(case.model, case.update, seed=0, **known)
    declared = _loss(
        genome["loss"] if genome["declared"] == "right" else genome["wrong"], C, genome
    )
    return unsum.separate(
        case.model,
        case.update,
        seed=0,
        loss="cross-entropy" if declared.name == "cross-entropy" else declared,
        **known,
    )


def build(g: Genome) -> tuple[Case, Loss]:
    generator = torch.Generator().manual_seed(g["seed"])
    C, H, B = g["classes"], g["inputs"], g["batch"]
    dtype = torch.float64 if g["dtype"] == "float64" else torch.float32
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    features = normal(H) + 10 ** g["spread"] * normal(B, H)
    features = features.relu() if g["relu"] else features
    loss = _loss(g["loss"], C, g)
    targets = _targets(g, B, C, loss, generator)
    n, distance = g["siblings"], 10 ** g["apart"]
    if n > 1:
        steps = normal(n * B, H)
        features = features.repeat(n, 1)
        features = features + distance * features.norm(dim=1, keepdim=True) * steps / steps.norm(
            dim=1, keepdim=True
        )
        targets = targets.repeat(n, 1)
    model = nn.Linear(H, C, bias=g["bias"] is not False).double()
    with torch.no_grad():
        model.weight.copy_(10 ** g["weights"] * normal(C, H) / H**0.5)
        if model.bias is not None:
            model.bias.copy_(normal(C) * (0.0 if g["bias"] == "zero" else 0.1))
    model, features, targets = model.to(dtype), features.to(dtype), targets.to(dtype)
    return Case(
        model, _update(g, model, features, targets, loss, generator), features, targets
    ), loss


def _targets(g: Genome, B: int, C: int, loss: Loss, generator: torch.Generator) -> Tensor:
    if loss.many_labels:
        return (
            torch.rand(B, C, generator=generator, dtype=torch.float64) < g["positives"]
        ).double()
    labels = torch.randint(C, (B,), generator=generator)
    if g["labels"] == "distinct":
        labels = torch.randperm(C, generator=generator).repeat(1 + B // C)[:B]
    if g["labels"] == "same":
        labels[:] = labels[0]
    rows = nn.functional.one_hot(labels, C).double()
    return rows * g["targets"] if loss.name == "mse" else rows


def _update(
    g: Genome, model: nn.Linear, features: Tensor, Y: Tensor, loss: Loss, generator: torch.Generator
) -> unsum.Update:
    with torch.no_grad():
        G = (
            loss.gradient(model(features), Y)
            / (loss.divisor(Y) if g["reduction"] == "mean" else 1.0)
            * 10 ** g["scale"]
        )
        G = (
            G
            * relative_weights(g.get("weights are", "alike"), Y.argmax(1), g["seed"]).to(G)[:, None]
        )
        gradients = {"weight": (G.T @ features).to(features.dtype)}
        if model.bias is not None and g["biased_gradient"]:
            gradients["bias"] = G.sum(0).to(features.dtype)
    if g["noise"] > -math.inf:
        size = 10 ** g["noise"] * float(gradients["weight"].abs().max())
        gradients = {
            name: t + size * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
            for name, t in gradients.items()
        }
    if g["dtype"] in ("float16", "bfloat16"):
        gradients = {name: t.to(getattr(torch, g["dtype"])) for name, t in gradients.items()}
    return unsum.Update(gradients, reduction=g["reduction"])


def _loss(name: str, C: int, g: Genome) -> Loss:
    weight = 0.3 + 2 * torch.rand(
        C, generator=torch.Generator().manual_seed(g["seed"] + 7), dtype=torch.float64
    )
    losses: dict[str, Loss] = {
        "bce": BinaryCrossEntropy(), "mse": SquaredError(), "focal": Focal(g["gamma"]),
        "cross-entropy": CrossEntropy(), "weighted": WeightedCrossEntropy(weight),
        "weighted and smoothed": WeightedCrossEntropy(weight, 0.1),
    }  # fmt: skip
    return losses[name]
