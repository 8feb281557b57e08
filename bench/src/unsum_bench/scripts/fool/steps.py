"""Can the claim about several local steps be fooled? Random cases of the attack `local-steps`, each
with its truth.

A client trains a small network for a few steps and sends the change of its weights. What it
declares may be less than what it does, or something else: a momentum, sizes of steps or a learning
rate of its own, gradients that were accumulated, another optimizer, weight decay, averaged weights,
layers with rates of their own, a smoothed or weighted loss, another number of steps or an order
shuffled anew in every epoch; and siblings of one label that look like one.
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
from unsum.local_training import LocalTraining
from unsum_bench.scripts.fool.common import (
    FALSE_CLAIM,
    WEIGHTS,
    TooLongError,
    Try,
    deadline,
    false_count,
    relative_weights,
)
from unsum_bench.scripts.fool.judge import nearest
from unsum_bench.scripts.fool.rounds import judge

Genome = dict[str, Any]

_USUAL = 0.65  # chance that a gene is one of an ordinary case

GENES = {
    "classes": (6, 24), "batch": (0.51, 3.49), "steps": (0.51, 3.49), "inputs": (6, 24),
    "rate": (-5, 0.5), "weights": (-6, 1), "body": (-2, 0.3), "sibling": (-6, -0.5),
    "momentum": (0.05, 0.95), "uneven": (-3, 0.5), "noise": (-9, -2), "margin": (0, 12),
}  # fmt: skip
CHOICES = {
    "siblings": (0, 0, 0, 1),  # further ones of every sample, in the same step
    "bias": (True, True, False),
    "epochs": (1, 1, 1, 2),
    "momentum_is": ("none", "none", "declared", "kept secret"),
    "rates": ("declared", "declared", "unknown", "uneven", "wrong"),
    "sizes": ("equal", "equal", "unequal", "last smaller"),
    "accumulated": (False, False, False, True),  # all micro-batches in one step
    "noisy": (False, False, False, True),
    "dtype": ("float32", "float32", "float64", "float16"),
    "told": ("nothing", "batch size", "visits"),
    "labels": ("distinct", "random"),
    "optimizer": (
        "sgd",
        "sgd",
        "sgd",
        "nesterov",
        "adam",
        "adamw",
        "decay",
        "averaged",
        "two rates",
    ),
    "loss": ("plain", "plain", "plain", "smoothed", "weighted", "both"),
    # those that the client says it took
    "steps_are": ("declared", "declared", "declared", "one more", "one fewer"),
    "order": ("same", "same", "shuffled"),  # in every further epoch
    "weights are": WEIGHTS,  # in every step
    "repeats": (
        "no",
        "no",
        "no",
        "some",
        "all",
    ),  # of the first step's samples, met again in the next and declared as others
    "method": ("local-steps", "local-steps", "local-steps", "exact"),
}
# What a client does besides SGD at one rate: declared as plain SGD all the same.
_DECAY, _AVERAGE, _BODY_RATE, _SMOOTHING = 1e-2, 0.9, 0.1, 0.1
ORDINARY = {"classes": (19, 24), "inputs": (16, 24), "rate": (-1.7, -0.3), "weights": (-0.3, 0.5),
"body": (-1, 0.1),
            "margin": (0, 1)}  # fmt: skip
ORDINARY_CHOICES = {
    "siblings": (0,), "bias": (True,), "epochs": (1,), "momentum_is": ("none", "declared"),
    "rates": ("declared",), "sizes": ("equal",), "accumulated": (False,), "noisy": (False,),
    "dtype": ("float32",), "optimizer": ("sgd",), "loss": ("plain",), "steps_are": ("declared",),
    "order": ("same",), "method": ("local-steps",),
}  # fmt: skip


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    """Ordinary, or with each gene from anywhere now and then: a case that is odd in every way is
    hardly ever claimed."""

    def drawn(name: str, usual: dict[str, Any], every: dict[str, Any]) -> Any:
        return usual.get(name, every[name]) if tame or chance.random() < _USUAL else every[name]

    genome = {name: chance.uniform(*drawn(name, ORDINARY, GENES)) for name in GENES}
    genome |= {name: chance.choice(drawn(name, ORDINARY_CHOICES, CHOICES)) for name in CHOICES}
    return genome | {"seed": chance.randrange(1 << 30)}


def build(g: Genome) -> tuple[nn.Sequential, unsum.Update, Tensor, Tensor]:
    """The model that was sent, the update, and every sample's features in the step that saw it
    first, with its label."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(g["seed"])
        return _build(g)


def _build(g: Genome) -> tuple[nn.Sequential, unsum.Update, Tensor, Tensor]:
    C, H, B, steps = round(g["classes"]), round(g["inputs"]), round(g["batch"]), round(g["steps"])
    dtype = torch.float64 if g["dtype"] == "float64" else torch.float32
    sizes = _sizes(g, B, steps)
    total = sum(sizes)
    model = nn.Sequential(nn.Linear(H, H), nn.ReLU(), nn.Linear(H, C, bias=g["bias"])).to(dtype)
    inputs = 2 * torch.randn(total, H, dtype=dtype)
    labels = (
        torch.randperm(C).repeat(1 + total // C)[:total]
        if g["labels"] == "distinct"
        else torch.randint(C, (total,))
    )
    with torch.no_grad():
        model[0].weight.mul_(10 ** g["body"])
        model[2].weight.mul_(10 ** g["weights"])
        F = model[:2](inputs)
        own = F - F.mean(0) if total > 1 else F
        for row, label in zip(
            own / own.square().sum(1, keepdim=True).clamp_min(1e-9), labels, strict=True
        ):
            model[2].weight[label] += g["margin"] * row
    batches = []
    for rows in torch.arange(total).split(sizes):
        near = [inputs[rows] + 10 ** g["sibling"] * inputs[rows].norm(dim=1, keepdim=True) / H**0.5
                * torch.randn_like(inputs[rows]) for _ in range(g["siblings"])]  # fmt: skip
        batches.append((torch.cat([inputs[rows], *near]), labels[rows].repeat(1 + g["siblings"])))
    batches = _met_again(g, batches)
    after, features = _trained(g, model, batches)
    delta = {
        n: (p - q).detach()
        for (n, p), q in zip(after.named_parameters(), model.parameters(), strict=True)
    }
    if g["noisy"]:
        size = {n: 10 ** g["noise"] * float(t.abs().max()) for n, t in delta.items()}
        delta = {n: t + size[n] * torch.randn_like(t) for n, t in delta.items()}
    if g["dtype"] == "float16":
        delta = {n: t.half() for n, t in delta.items()}
    return model, _update(g, delta), features, torch.cat([y for _, y in batches])


def _met_again(g: Genome, batches: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The same batches, the later ones with samples of the first in the place of their own."""
    if g.get("repeats", "no") == "no":
        return batches
    (x, y), repeated = batches[0], batches[:1]
    for inputs, labels in batches[1:]:
        most = min(len(x), len(inputs)) if g.get("repeats", "no") == "all" else 1
        repeated.append(
            (torch.cat([x[:most], inputs[most:]]), torch.cat([y[:most], labels[most:]]))
        )
    return repeated


def _sizes(g: Genome, B: int, steps: int) -> list[int]:
    if g["sizes"] == "unequal":
        return [1 + (B + i) % 3 for i in range(steps)]
    return (
        [B] * steps
        if g["sizes"] == "equal" or steps == 1
        else [B + 1] * (steps - 1) + [max(1, B - 1)]
    )


def _optimizer(g: Genome, local: nn.Sequential) -> torch.optim.Optimizer:
    rate, momentum = 10 ** g["rate"], 0.0 if g["momentum_is"] == "none" else g["momentum"]
    if g["optimizer"] in ("adam", "adamw"):
        return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[g["optimizer"]](
            local.parameters(), lr=rate
        )
    slow = _BODY_RATE if g["optimizer"] == "two rates" else 1.0
    groups = [
        {"params": local[0].parameters(), "lr": rate * slow},
        {"params": local[2].parameters()},
    ]
    how = {"weight_decay": _DECAY} if g["optimizer"] == "decay" else {}
    nesterov = g["optimizer"] == "nesterov"
    return torch.optim.SGD(
        groups, lr=rate, momentum=momentum or 0.9 * nesterov, nesterov=nesterov, **how
    )


def _loss(g: Genome, logits: Tensor, labels: Tensor) -> Tensor:
    if g.get("weights are", "alike") != "alike":
        each = nn.functional.cross_entropy(logits, labels, reduction="none")
        return (
            each * relative_weights(g.get("weights are", "alike"), labels, g["seed"]).to(each)
        ).mean()
    weights = (
        1 + torch.arange(logits.shape[1]).to(logits) % 3
        if g["loss"] in ("weighted", "both")
        else None
    )
    smoothing = _SMOOTHING if g["loss"] in ("smoothed", "both") else 0.0
    return nn.functional.cross_entropy(logits, labels, weight=weights, label_smoothing=smoothing)


def _trained(
    g: Genome, model: nn.Sequential, batches: list[tuple[Tensor, Tensor]]
) -> tuple[nn.Sequential, Tensor]:
    local = copy.deepcopy(model)
    optimizer = _optimizer(g, local)
    rates = [group["lr"] for group in optimizer.param_groups]
    features = []
    for epoch in range(g["epochs"]):
        if epoch:
            batches = _next_order(g, batches)
        for place, (inputs, labels) in enumerate(batches):
            if epoch == 0:
                features.append(local[:2](inputs).detach())
            loss = _loss(g, local(inputs), labels)
            if g["accumulated"]:
                (loss / len(batches)).backward()
                continue
            optimizer.zero_grad()
            loss.backward()
            if g["rates"] == "uneven":
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * (1 + 10 ** g["uneven"] * place)
            optimizer.step()
        if g["accumulated"]:
            optimizer.step()
            break
    if g["optimizer"] == "averaged":
        with torch.no_grad():
            for p, q in zip(local.parameters(), model.parameters(), strict=True):
                p.lerp_(q, _AVERAGE)
    return local, torch.cat(features)


def _next_order(g: Genome, batches: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The samples of all mini-batches, shuffled anew where the genome says so."""
    if g["order"] == "same":
        return batches
    x, y = (torch.cat([batch[i] for batch in batches]) for i in (0, 1))
    order, sizes = torch.randperm(len(y)), [len(labels) for _, labels in batches]
    return list(zip(x[order].split(sizes), y[order].split(sizes), strict=True))


def _update(g: Genome, delta: dict[str, Tensor]) -> unsum.Update:
    rate = 10 ** g["rate"] * (1 + 10 ** g["uneven"] * (g["rates"] == "wrong"))
    known = None if g["rates"] == "unknown" else rate
    if g["method"] == "exact":  # takes the change for one step, whatever it was
        return unsum.Update.from_delta(delta, known)
    epochs = 1 if g["accumulated"] else g["epochs"]
    each = max(
        1, round(g["steps"]) + {"declared": 0, "one more": 1, "one fewer": -1}[g["steps_are"]]
    )
    steps = each * epochs
    declared = LocalTraining(
        known, steps, momentum=g["momentum"] * (g["momentum_is"] == "declared"), epochs=epochs
    )
    return unsum.Update.from_delta(
        delta, None if known is None else rate * steps, training=declared
    )


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    model, update, features, labels = build(genome)
    samples = len(labels) - met_again(genome)
    start = time.process_time()
    if not all(bool(torch.isfinite(t).all()) for t in update.gradients.values()):
        return Try(genome, "refused")
    sizes = {"batch size": samples, "visits": len(features)}
    known = {"batch_size": sizes[genome["told"]]} if genome["told"] in sizes else {}
    try:
        with deadline(seconds):
            leak = unsum.separate(model, update, genome["method"], seed=0, **known)
    except TooLongError:
        return Try(genome, "stopped", seconds=time.process_time() - start)
    except UnsumError:
        return Try(genome, "refused", seconds=time.process_time() - start)
    Y = nn.functional.one_hot(labels, leak.targets.shape[1]).double()
    # either is right where the client smoothed
    smooth = Y.lerp(torch.full_like(Y, 1 / Y.shape[1]), _SMOOTHING)
    truths = [Y, smooth] if genome["loss"] in ("smoothed", "both") else [Y]
    error, label_error = min(
        (judge(leak, copy.deepcopy(model[2]), features, each) for each in truths), key=max
    )
    fooled = "features" if error > FALSE_CLAIM else "labels" if label_error > 1e-2 else ""
    fooled = fooled or (
        false_count(leak, labels, samples)
        if samples == len(labels)
        else _false_visits(leak, samples)
    )
    predicted = leak.predicted_error if leak.predicted_error == leak.predicted_error else math.inf
    ended = "claimed" if leak.exact else "not claimed"
    took = time.process_time() - start
    off = nearest(features, leak)
    return Try(
        genome, ended, error, label_error, predicted, fooled if leak.exact else "", took, off
    )


def met_again(g: Genome) -> int:
    """How many visits are of samples that the first step met."""
    sizes = [n * (1 + g["siblings"]) for n in _sizes(g, round(g["batch"]), round(g["steps"]))]
    each = {"no": 0, "some": 1, "all": sizes[0]}[g.get("repeats", "no")]
    return sum(min(each, n) for n in sizes[1:])


def _false_visits(leak: unsum.Leak, samples: int) -> str:
    if leak.distinct > samples or (leak.counts_certain and leak.batch_size != samples):
        return "counts: visits are claimed as samples"
    return ""
