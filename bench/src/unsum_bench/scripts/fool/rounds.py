"""Can the claim about several rounds be fooled? Random cases of `unsum.separate_rounds`, each with
its truth.

A case is one batch in one to four rounds: heads that are equal, nearly equal or different, siblings
of one label that look like one, few classes, rounding, noise, features that moved between the
rounds, batches that are only said to repeat.
"""

from __future__ import annotations

import copy
import math
import random
import time
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum.errors import UnsumError
from unsum_bench.scripts.fool.common import (
    FALSE_CLAIM,
    TRACE,
    WEIGHTS,
    TooLongError,
    Try,
    deadline,
    false_count,
    relative_weights,
)
from unsum_bench.scripts.fool.judge import nearest

Genome = dict[str, Any]

_USUAL = 0.65  # chance that a gene is one of an ordinary case

# Gene → its range; whole numbers are rounded, and logarithms are of base ten.
GENES = {
    "rounds": (0.51, 4.49), "classes": (1.51, 12.49), "batch": (0.51, 6.49), "inputs": (1, 20),
    "spread": (-3, 0.5), "sibling": (-6, -0.5), "weights": (-8, 1), "heads": (-9, 0.3),
    "noise": (-9, -1), "moved": (-8, -2), "scale": (-2, 2), "blend": (0, 0.5),
}  # fmt: skip
CHOICES = {
    "siblings": (0, 0, 1, 1, 2),  # further ones of every sample
    "labels": ("distinct", "random", "same"),
    "equal": ("different", "different", "near", "equal"),
    "bias": (True, True, False),
    "biased_gradient": (True, True, False),
    "dtype": ("float32", "float32", "float64", "float16", "bfloat16"),
    "noisy": (False, False, True),
    "moves": (False, False, True),
    "scaled": ("no", "no", "all", "each"),
    "soft": ("hard", "hard", "hard", "mixup", "smooth"),
    "repeats": (True, True, True, False),
    "reduction": ("mean", "mean", "sum"),
    "told": ("nothing", "nothing", "batch size"),
    "weights are": WEIGHTS,
}
# What most clients send; here the yield is measured.
ORDINARY = {
    "spread": (-0.5, 0.5),
    "weights": (-0.5, 0.5),
    "heads": (-1.5, 0),
    "inputs": (8, 20),
    "noise": (-9, -6),
}
ORDINARY_CHOICES = {
    "siblings": (0,), "labels": ("distinct", "random"), "equal": ("different",),
    "dtype": ("float32",), "moves": (False,), "scaled": ("no",), "soft": ("hard",),
    "repeats": (True,), "reduction": ("mean",), "bias": (True,), "biased_gradient": (True,),
    "noisy": (False, False, True),
}  # fmt: skip


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    """Ordinary, or with each gene from anywhere now and then: a case that is odd in every way is
    hardly ever claimed."""

    def drawn(name: str, usual: dict[str, Any], every: dict[str, Any]) -> Any:
        return usual.get(name, every[name]) if tame or chance.random() < _USUAL else every[name]

    genome = {name: chance.uniform(*drawn(name, ORDINARY, GENES)) for name in GENES}
    genome |= {name: chance.choice(drawn(name, ORDINARY_CHOICES, CHOICES)) for name in CHOICES}
    return genome | {"seed": chance.randrange(1 << 30)}


def build(g: Genome) -> tuple[list[tuple[nn.Module, unsum.Update]], list[Tensor], list[Tensor]]:
    """The rounds, and for each its features and targets."""
    generator = torch.Generator().manual_seed(g["seed"])
    dtype = torch.float64 if g["dtype"] == "float64" else torch.float32
    C, H = round(g["classes"]), round(g["inputs"])
    W = _normal(generator, C, H) / H**0.5 * 10 ** g["weights"]
    b = 0.1 * _normal(generator, C)
    F, Y = _batch(g, generator)
    sent, features, targets = [], [], []
    for place in range(round(g["rounds"])):
        if place and not g["repeats"]:
            F, Y = _batch(g, generator)
        amount = {"different": max(10 ** g["heads"], 1e-2), "near": 10 ** g["heads"], "equal": 0.0}[
            g["equal"]
        ]
        here = F
        if place and g["moves"]:
            here = (
                F
                + 10 ** g["moved"]
                * F.norm(dim=1, keepdim=True)
                * _normal(generator, *F.shape)
                / H**0.5
            )
        head = nn.Linear(H, C, bias=g["bias"]).double()
        with torch.no_grad():
            change = 0.0 if place == 0 else amount
            head.weight.copy_(W + change * W.std(correction=0) * _normal(generator, C, H))
            if head.bias is not None:
                head.bias.copy_(b + change * 0.1 * _normal(generator, C))
        head, here = head.to(dtype), here.to(dtype)
        scale = (
            10 ** g["scale"]
            * {"no": 10 ** -g["scale"], "all": 1.0, "each": 1.0 + place}[g["scaled"]]
        )
        sent.append((head, _update(g, head, here, Y.to(dtype), scale, generator)))
        features.append(here)
        targets.append(Y)
    return sent, features, targets


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _batch(g: Genome, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    B, C, H = round(g["batch"]), round(g["classes"]), round(g["inputs"])
    F = _normal(generator, H) + 10 ** g["spread"] * _normal(generator, B, H)
    labels = torch.randperm(C, generator=generator).repeat(1 + B // C)[:B]
    if g["labels"] != "distinct":
        labels = torch.randint(C, (B,), generator=generator)
    if g["labels"] == "same":
        labels[:] = labels[0]
    distance = 10 ** g["sibling"] * F.norm(dim=1, keepdim=True) / H**0.5
    F = torch.cat([F, *(F + distance * _normal(generator, B, H) for _ in range(g["siblings"]))])
    Y = nn.functional.one_hot(labels, C).double()
    if g["soft"] == "mixup":
        Y = (1 - g["blend"]) * Y + g["blend"] * Y.roll(1, 0)
    if g["soft"] == "smooth":
        Y = (1 - g["blend"]) * Y + g["blend"] / C
    return F, Y.repeat(1 + g["siblings"], 1)


def _update(
    g: Genome, head: nn.Linear, F: Tensor, Y: Tensor, scale: float, generator: torch.Generator
) -> unsum.Update:
    each = nn.functional.cross_entropy(head(F), Y, reduction="none")
    each = each * relative_weights(g.get("weights are", "alike"), Y.argmax(1), g["seed"]).to(each)
    (each.mean() if g["reduction"] == "mean" else each.sum()).backward()
    gradients = {name: scale * p.grad for name, p in head.named_parameters() if p.grad is not None}
    if not g["biased_gradient"]:
        gradients.pop("bias", None)
    head.zero_grad()
    if g["noisy"]:
        size = 10 ** g["noise"] * float(gradients["weight"].abs().max())
        gradients = {n: t + size * _normal(generator, *t.shape).to(t) for n, t in gradients.items()}
    if g["dtype"] in ("float16", "bfloat16"):
        gradients = {n: t.to(getattr(torch, g["dtype"])) for n, t in gradients.items()}
    return unsum.Update(gradients, reduction=g["reduction"])


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    sent, features, targets = build(genome)
    if not all(
        bool(torch.isfinite(t).all()) for _, update in sent for t in update.gradients.values()
    ):
        return Try(genome, "refused")
    start = time.process_time()
    known = {"batch_size": len(features[0])} if genome["told"] == "batch size" else {}
    try:
        with deadline(seconds):
            leak = unsum.separate_rounds(sent, seed=0, **known)
    except TooLongError:
        return Try(genome, "stopped", seconds=time.process_time() - start)
    except UnsumError:
        return Try(genome, "refused", seconds=time.process_time() - start)
    # Whichever round the answer is of: features that moved, or other batches, make several answers
    # right.
    judged = [
        judge(leak, head, F, Y) for (head, _), F, Y in zip(sent, features, targets, strict=True)
    ]
    error, label_error = min(judged, key=max)
    fooled = "features" if error > FALSE_CLAIM else "labels" if label_error > 1e-2 else ""
    counts = [false_count(leak, Y.argmax(1)) for Y in targets]
    fooled = fooled or (min(counts, key=len) if all(counts) else "")
    predicted = leak.predicted_error if leak.predicted_error == leak.predicted_error else math.inf
    ended = "claimed" if leak.exact else "not claimed"
    off = min(nearest(F, leak) for F in features)
    took = time.process_time() - start
    return Try(
        genome, ended, error, label_error, predicted, fooled if leak.exact else "", took, off
    )


def judge(leak: unsum.Leak, head: nn.Linear, F: Tensor, Y: Tensor) -> tuple[float, float]:
    """The largest error of a sample that sent anything, or was made up, and of its label: each
    against the nearest."""
    true, found = F.double(), leak.features.double()
    with torch.no_grad():
        sent = (copy.deepcopy(head).double()(true).softmax(1) - Y).norm(dim=1) * true.norm(dim=1)
    distance = torch.cdist(true, found) / true.norm(dim=1, keepdim=True).clamp_min(1e-300)
    traced = (sent > TRACE * sent.max()) | (distance.amin(1) < FALSE_CLAIM)
    if not bool(traced.any()):
        return math.inf, math.inf
    error = max(float(distance[traced].amin(1).max()), float(distance[traced].amin(0).max()))
    wrong = (leak.targets.double()[None] - Y[:, None]).abs().amax(2)  # (true, found)
    near = torch.where(distance < FALSE_CLAIM, wrong, torch.inf)
    label_error = max(float(near[traced].amin(1).max()), float(near[traced].amin(0).max()))
    return (math.inf if error != error else error), label_error
