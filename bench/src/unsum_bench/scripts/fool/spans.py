"""Can a claim of the spans be fooled? Small dense networks, batches of more samples than classes,
each held against its truth.

Bred from what the condition cannot see: activations that are nearly linear, samples with equal ReLU
patterns, proportional ones, mixtures of others, twins, losses that nobody declared; and local steps
whose number, rate or momentum nobody declared, or that are declared wrongly. A claim is false when
a found sample is more than 1 % away from every true one at the layer that was read, when a sample
that sends more than 1e-5 of that layer's gradient is missing, or when a label is wrong.
"""

from __future__ import annotations

import copy
import math
import random
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum.errors import UnsumError
from unsum_bench.scripts.fool import objectives, peel
from unsum_bench.scripts.fool.common import (
    FALSE_CLAIM,
    TRACE,
    WRONG_TARGET,
    Genome,
    TooLongError,
    Try,
    deadline,
    false_count,
    relative_weights,
)
from unsum_bench.scripts.fool.peel import Case

GENES = {
    "batch": (0.51, 20.49),
    "classes": (0.51, 8.49),
    "depth": (0.51, 3.49),
    "width": (7.51, 80.49),
    "mixed": (0, 1),
    "heat": (-0.5, 0.5),
    "rate": (-3, 0),
}
CHOICES = {
    "activation": ("relu", "relu", "leaky", "elu", "gelu", "tanh", "sigmoid", "softplus"),
    "mixtures": (0, 0, 0, 1, 2),  # samples that are means of two others
    # of the first layer's units: all on for everybody, where equal
    "patterns": ("any", "any", "any", "equal"),
    "loss": ("cross-entropy", "cross-entropy", "bce", "mse", "temperature", "weighted"),
    "declared": (True, False, False),
    "told": ("nothing", "nothing", "batch size", "visits"),
    # the first step's samples again in every other one, declared as others
    "repeats": (False, False, True),
    "steps": (0, 0, 0, 1, 2, 3, 4),  # 0 sends a gradient, the others a change of weights
    "momentum": (0.0, 0.0, 0.0, 0.9),
    "epochs": (1, 1, 1, 2),
    "training": ("nothing", "rate", "rate", "all", "another momentum"),
}  # fmt: skip
ORDINARY = {
    "batch": (1.51, 12.49),
    "classes": (1.51, 6.49),
    "depth": (1.51, 2.49),
    "width": (39.51, 80.49),
}
ORDINARY_CHOICES = {
    "mixtures": (0,),
    "patterns": ("any",),
    "loss": ("cross-entropy",),
    "declared": (False,),
}


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    genome = peel.random_genome(chance, tame=tame)
    share = 1.0 if tame else chance.random()
    for name, ends in GENES.items():
        genome[name] = chance.uniform(
            *(ORDINARY.get(name, ends) if chance.random() < share else ends)
        )
    for name, values in CHOICES.items():
        usual = tame or chance.random() < share
        genome[name] = chance.choice(ORDINARY_CHOICES.get(name, values) if usual else values)
    return genome | {"method": "spans"}


def kind(genome: Genome) -> str:
    named = (
        "activation",
        "bias",
        "twins",
        "direction",
        "soft",
        "dtype",
        "noisy",
        "loss",
        "patterns",
        "mixtures",
        "told",
        "steps",
        "training",
        "weights are",
        "objective",
        "repeats",
    )
    return ", ".join(f"{name} {genome[name]}" for name in named)


def build(genome: Genome) -> Case:
    """The case of `peel`, with mixtures among its samples, units that never switch, and the loss
    that the genome names."""
    C = max(round(genome["classes"]), 2)
    case = peel.build(genome | {"classes": C})
    x, Y, model = case.x, case.Y, case.model
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(genome["seed"] + 1)
        for _ in range(genome["mixtures"] if len(x) > 1 else 0):
            i, j = torch.randint(len(x), (2,)).tolist()
            x = torch.cat(
                [x, genome["mixed"] * x[i : i + 1] + (1 - genome["mixed"]) * x[j : j + 1]]
            )
            Y = torch.cat([Y, Y[i : i + 1]])
        first = model[0]
        if (
            genome["patterns"] == "equal"
            and first.bias is not None
            and isinstance(first, nn.Linear)
        ):
            # above zero for every sample
            first.bias += x.flatten(1).norm(dim=1).max() * first.weight.norm(dim=1)
    one_logit = (
        round(genome["classes"]) == 1 and genome["loss"] == "bce" and genome["soft"] == "hard"
    )
    if one_logit:
        model = _with_one_logit(model)
        Y = Y[:, 1:]
    if genome["steps"]:
        return Case(model, peel.sent(genome, _change(genome, model, x, Y)), x, Y)
    return Case(model, _update(genome, model, x, Y), x, Y)


def _with_one_logit(model: nn.Sequential) -> nn.Sequential:
    head = model[-1]
    one = nn.Linear(head.in_features, 1, bias=head.bias is not None, dtype=head.weight.dtype)
    one.load_state_dict({name: value[:1] for name, value in head.state_dict().items()})
    return nn.Sequential(*model[:-1], one)


def _loss(genome: Genome, logits: Tensor, Y: Tensor) -> Tensor:
    """Of every sample, summed."""
    if genome["loss"] == "bce":
        return (
            nn.functional.binary_cross_entropy_with_logits(logits, Y, reduction="none")
            .mean(1)
            .sum()
        )
    if genome["loss"] == "mse":
        return nn.functional.mse_loss(logits, Y, reduction="none").mean(1).sum()
    heat = 10 ** genome["heat"] if genome["loss"] == "temperature" else 1.0
    odd, strength = genome.get("objective", "plain"), 10 ** genome.get("strength", 0)
    each = objectives.losses(odd, strength, logits / heat, Y)
    weights = (
        1 + torch.arange(Y.shape[1]) % 3 if genome["loss"] == "weighted" else torch.ones(Y.shape[1])
    )
    each = each * weights.to(Y)[Y.argmax(1)]
    return (
        each
        * relative_weights(genome.get("weights are", "alike"), Y.argmax(1), genome["seed"]).to(Y)
    ).sum()


@dataclass(frozen=True)
class Visit:
    """What one local step saw, and the model as it met it."""

    model: nn.Sequential
    x: Tensor
    Y: Tensor


def _visits(
    genome: Genome, model: nn.Sequential, x: Tensor, Y: Tensor
) -> tuple[list[Visit], nn.Sequential]:
    """All local steps of SGD, and the model after them; a gradient is one step that moves
    nothing."""
    trained, visits, velocity = (
        copy.deepcopy(model),
        [],
        [torch.zeros_like(p) for p in model.parameters()],
    )
    size = -(-len(x) // max(genome["steps"], 1))
    if genome.get("repeats") and genome["steps"]:
        again = torch.arange(len(x)) % size
        x, Y = x[again], Y[again]
    for _ in range(genome["epochs"] if genome["steps"] else 1):
        for some, targets in zip(x.split(size), Y.split(size), strict=True):
            visits.append(Visit(copy.deepcopy(trained), some, targets))
            share = len(some) if genome["reduction"] == "mean" else 1
            gradients = torch.autograd.grad(
                _loss(genome, trained(some), targets) / share, list(trained.parameters())
            )
            with torch.no_grad():
                for p, v, g in zip(trained.parameters(), velocity, gradients, strict=True):
                    p -= 10 ** genome["rate"] * v.mul_(genome["momentum"]).add_(g)
    return visits, trained


def _change(genome: Genome, model: nn.Sequential, x: Tensor, Y: Tensor) -> unsum.Update:
    """The change of weights, with what is told about the training."""
    visits, trained = _visits(genome, model, x, Y)
    rate = None if genome["training"] == "nothing" else 10 ** genome["rate"]
    old, new = (dict(one.named_parameters()) for one in (model, trained))
    delta = {name: (new[name] - old[name]).detach() for name in old}
    update = unsum.Update.from_delta(delta, rate, reduction=genome["reduction"])
    if genome["training"] not in ("all", "another momentum"):
        return update
    momentum = genome["momentum"] if genome["training"] == "all" else 0.9 - genome["momentum"]
    training = unsum.LocalTraining(learning_rate=rate, steps=len(visits), momentum=momentum)
    return update.of_training(training, {name: p.detach() for name, p in old.items()})


def _update(genome: Genome, model: nn.Sequential, x: Tensor, Y: Tensor) -> unsum.Update:
    """What the client sends, rounded and noised as `peel` does it."""
    total = _loss(genome, model(x), Y) / (len(x) if genome["reduction"] == "mean" else 1)
    gradients = dict(
        zip(
            dict(model.named_parameters()),
            torch.autograd.grad(total, list(model.parameters())),
            strict=True,
        )
    )
    odd, strength = genome.get("objective", "plain"), 10 ** genome.get("strength", 0)
    update = unsum.Update(
        objectives.changed(odd, strength, gradients, model), reduction=genome["reduction"]
    )
    return peel.sent(genome, update)


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    case = build(genome)
    if not all(bool(torch.isfinite(t).all()) for t in case.update.gradients.values()):
        return Try(genome, "refused")
    start = time.process_time()
    try:
        with deadline(seconds):
            leak = unsum.separate(case.model, case.update, "spans", **_known(genome, case))
    except TooLongError:
        return Try(genome, "stopped", seconds=time.process_time() - start)
    except UnsumError:
        return Try(genome, "refused", seconds=time.process_time() - start)
    return _judged(genome, case, leak, time.process_time() - start)


def _known(genome: Genome, case: Case) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if genome["told"] in ("batch size", "visits"):
        known["batch_size"] = (
            len(case.x) if genome["told"] == "visits" else samples_of(genome, case)
        )
    if genome["declared"] and genome["loss"] in ("cross-entropy", "bce", "mse"):
        known["loss"] = genome["loss"]
    return known


def samples_of(genome: Genome, case: Case) -> int:
    """How many samples there are, where steps may have met the same ones."""
    repeats = genome.get("repeats") and genome["steps"]
    return -(-len(case.x) // genome["steps"]) if repeats else len(case.x)


def _judged(genome: Genome, case: Case, leak: unsum.Leak, seconds: float) -> Try:
    if leak.batch_size == 0:
        return Try(genome, "not claimed", seconds=seconds)
    name, found = next(iter(leak.inner.items()))
    read, sent = _truth(genome, case, name)
    apart = torch.cdist(found.double(), read) / read.norm(dim=1).clamp_min(1e-300)
    apart = apart.nan_to_num(torch.inf)
    wrong, traced = float(apart.amin(1).max()), sent > TRACE
    missing = float(apart[:, traced].amin(0).max()) if bool(traced.any()) else math.inf
    error = max(wrong, missing)
    answer = peel.Answer(
        found, torch.ones(len(found), dtype=torch.bool), leak.targets, leak.predicted_error
    )
    Y = torch.cat([visit.Y for visit in _visits(genome, case.model, case.x, case.Y)[0]])
    label_error = peel.label_error(replace(case, x=read, Y=Y), answer, apart)
    fooled = ""
    if leak.exact and not error <= FALSE_CLAIM:
        fooled = "a claimed sample is none" if not wrong <= FALSE_CLAIM else "a sample is missing"
    elif leak.exact and label_error > WRONG_TARGET:
        fooled = "labels"
    elif leak.exact:
        fooled = false_count(leak, case.Y[: samples_of(genome, case)].argmax(1))
    ended = "claimed" if leak.exact else "not claimed"
    return Try(genome, ended, error, label_error, leak.predicted_error, fooled, seconds, wrong)


def _truth(genome: Genome, case: Case, name: str) -> tuple[Tensor, Tensor]:
    """(what the layer read in every visit (V, n), how much of its gradient each sample sends,
    relative to the largest)."""
    read, sizes = list[Tensor](), []
    for visit in _visits(genome, case.model, case.x, case.Y)[0]:
        layer = visit.model.get_submodule(name)
        with layer.register_forward_hook(
            lambda _module, inputs, _output: read.append(inputs[0].detach())
        ):
            visit.model(visit.x)
        for x, y in zip(visit.x, visit.Y, strict=True):
            (gradient,) = torch.autograd.grad(
                _loss(genome, visit.model(x[None]), y[None]), layer.weight
            )
            sizes.append(gradient.double().norm())
    sent = torch.stack(sizes)
    return torch.cat(read).double(), sent / sent.max().clamp_min(1e-300)
