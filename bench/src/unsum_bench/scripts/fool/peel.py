"""Can a claim about peeled inputs be fooled? Random small networks and batches, each attacked and
held against its truth.

A claim is false when a claimed input is more than 1 % away from every true one, when its label is
another's, or when all inputs are claimed and a sample that sends more than 1e-5 of the gradient is
not among them.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum.errors import UnsumError
from unsum_bench.scripts.fool import objectives
from unsum_bench.scripts.fool.common import (
    WEIGHTS,
    Genome,
    TooLongError,
    Try,
    deadline,
    relative_weights,
)
from unsum_bench.scripts.fool.objectives import OBJECTIVES

FALSE_CLAIM, TRACE = 1e-2, 1e-5

# Gene → its range; whole numbers are rounded, and logarithms are of base ten.
GENES = {
    "classes": (1.51, 10.49), "batch": (0.51, 6.49), "inputs": (1.51, 40.49),
    "width": (3.51, 60.49), "depth": (-0.49, 3.49), "gain": (-1.5, 1.0), "spread": (-3, 0.3),
    "twin": (-5, 0), "noise": (-9, -2), "size": (-1.5, 1.5), "blend": (0, 0.5),
    "strength": (-6, 0.5),
}  # fmt: skip
CHOICES = {
    "activation": ("relu", "leaky", "elu", "gelu", "tanh", "sigmoid", "sigmoid", "softplus"),
    "bias": (True, True, True, False),
    "convolution": (False, False, False, False, True),
    "trained": (False, False, True),
    "init": ("default", "default", "normal"),
    "labels": ("distinct", "random", "same"),
    "soft": ("hard", "hard", "hard", "hard", "smooth", "mixup"),
    "twins": ("none", "none", "first", "each"),  # which samples have siblings
    "siblings": (1, 1, 1, 2, 3, 7),  # how many more each of these is
    "direction": ("random", "random", "random", "proportional", "brighter", "hidden"),
    "twin_label": ("same", "same", "same", "other"),
    "dtype": ("float32", "float32", "float32", "float64", "float16", "bfloat16"),
    "noisy": (False, False, False, True),
    "reduction": ("mean", "mean", "mean", "sum"),
    "scale": (1.0, 1.0, 1.0, 0.1),
    "told": ("nothing", "nothing", "nothing", "batch size", "labels"),
    "loss": ("cross-entropy", "cross-entropy", None),
    "weights are": WEIGHTS,
    "objective": OBJECTIVES,
    "method": ("layers", "layers", "layers", "attack", "phong-input"),
}
# What most clients send; here the yield is measured.
ORDINARY = {"classes": (3.51, 10.49), "batch": (0.51, 4.49), "inputs": (11.51, 40.49),
"width": (19.51, 60.49),
            "depth": (0.51, 2.49), "gain": (0.0, 0.4), "spread": (-0.5, 0.3)}  # fmt: skip
ORDINARY_CHOICES = {
    "activation": ("relu", "leaky", "elu", "gelu", "tanh", "sigmoid"),
    "labels": ("distinct", "random"), "soft": ("hard",), "twins": ("none",), "dtype": ("float32",),
    "noisy": (False,), "reduction": ("mean",), "scale": (1.0,), "told": ("nothing",),
    "loss": ("cross-entropy",), "method": ("layers",), "convolution": (False,),
    "objective": ("plain",),
}  # fmt: skip
ACTIVATIONS = {
    "relu": nn.ReLU, "leaky": lambda: nn.LeakyReLU(0.2), "elu": nn.ELU, "gelu": nn.GELU,
    "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "softplus": nn.Softplus,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    model: nn.Sequential
    update: unsum.Update
    x: Tensor  # (B, …)
    Y: Tensor  # (B, C)


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    """As most clients send them; or some genes so and the others, siblings among them, from
    anywhere: far from all that is ordinary hardly anything is claimed, and only claims can be
    false."""
    share = 1.0 if tame else chance.random()
    genome: Genome = {"seed": chance.randrange(1 << 30)}
    for name, ends in GENES.items():
        genome[name] = chance.uniform(
            *(ORDINARY.get(name, ends) if chance.random() < share else ends)
        )
    for name, values in CHOICES.items():
        usual = tame or (name not in ("twins", "told") and chance.random() < share)
        genome[name] = chance.choice(ORDINARY_CHOICES.get(name, values) if usual else values)
    return genome


def build(genome: Genome) -> Case:
    """The case that a genome describes."""
    g, C, B = genome, round(genome["classes"]), round(genome["batch"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(g["seed"])
        shape = (1, 6, 6) if g["convolution"] else (round(g["inputs"]),)
        model = _network(g, shape, C)
        x = 10 ** g["size"] * (torch.rand(shape) + 10 ** g["spread"] * torch.rand(B, *shape))
        labels = {"distinct": torch.randperm(C).repeat(B)[:B], "same": torch.full((B,), C - 1)}.get(
            g["labels"], torch.randint(C, (B,))
        )
        x, labels = _with_siblings(g, model, x, labels, C)
        Y = _targets(g, labels, C)
        dtype = torch.float64 if g["dtype"] == "float64" else torch.float32
        model, x, Y = model.to(dtype), x.to(dtype), Y.to(dtype)
        if g["trained"]:
            _train(model, x, Y)
        return Case(model, _update(g, model, x, Y), x, Y)


def _network(g: Genome, shape: tuple[int, ...], C: int) -> nn.Sequential:
    activation, bias, width = ACTIVATIONS[g["activation"]], g["bias"], round(g["width"])
    layers: list[nn.Module] = []
    size = math.prod(shape)
    if g["convolution"]:
        channels = 1 + width // 4
        layers += [nn.Conv2d(1, channels, 3, 1, 1, bias=bias), activation(), nn.Flatten()]
        size = channels * 36
    widths = [size, *[width] * round(g["depth"]), C]
    for n, m in itertools.pairwise(widths):
        layers += [nn.Linear(n, m, bias=bias), activation()]
    model = nn.Sequential(*layers[:-1])
    for layer in model:
        if g["init"] == "normal" and hasattr(layer, "weight"):
            nn.init.normal_(layer.weight, 0, 10 ** g["gain"] / layer.weight[0].numel() ** 0.5)
    return model


def _with_siblings(
    g: Genome, model: nn.Sequential, x: Tensor, labels: Tensor, C: int
) -> tuple[Tensor, Tensor]:
    """Further samples near the first, or near each: equal ones at the least distance."""
    if g["twins"] == "none":
        return x, labels
    near = x[:1] if g["twins"] == "first" else x
    distance = 0.0 if g["twin"] < -4.5 else 10 ** g["twin"]
    rows, names = [x], [labels]
    for _ in range(g["siblings"]):
        step = _direction(g, model, near)
        size = near.flatten(1).norm(dim=1) / step.flatten(1).norm(dim=1).clamp_min(1e-30)
        rows.append(near + distance * size.view(-1, *[1] * (x.ndim - 1)) * step)
        names.append((labels[: len(near)] + (g["twin_label"] == "other")) % C)
    return torch.cat(rows), torch.cat(names)


def _direction(g: Genome, model: nn.Sequential, near: Tensor) -> Tensor:
    if g["direction"] == "proportional":
        return near
    if g["direction"] == "brighter":
        return torch.ones_like(near)
    step = torch.randn_like(near)
    first = model[0]
    # hardly seen by the first layer
    if g["direction"] == "hidden" and isinstance(first, nn.Linear):
        rows = torch.linalg.svd(first.weight.detach(), full_matrices=False)[2]
        step = step - 0.9 * step @ rows.T @ rows
    return step


def _targets(g: Genome, labels: Tensor, C: int) -> Tensor:
    rows = nn.functional.one_hot(labels, C).float()
    if g["soft"] == "mixup":
        rows = (1 - g["blend"]) * rows + g["blend"] * rows.roll(1, 0)
    if g["soft"] == "smooth":
        rows = rows * (1 - 0.5 * g["blend"]) + 0.5 * g["blend"] / C
    return rows


def _train(model: nn.Sequential, x: Tensor, Y: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), Y).backward()
        optimizer.step()


def _update(g: Genome, model: nn.Sequential, x: Tensor, Y: Tensor) -> unsum.Update:
    model.zero_grad()
    odd, strength = g.get("objective", "plain"), 10 ** g.get("strength", 0)
    sent_out = copy.deepcopy(model.state_dict())
    if odd == "other weights":
        objectives.moved(model, strength, torch.Generator().manual_seed(g["seed"] + 3))
    each = objectives.losses(odd, strength, model(x), Y)
    each = each * relative_weights(g.get("weights are", "alike"), Y.argmax(1), g["seed"]).to(each)
    (each.mean() if g["reduction"] == "mean" else each.sum()).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.load_state_dict(sent_out)
    update = unsum.Update(
        objectives.changed(odd, strength, gradients, model), reduction=g["reduction"]
    )
    return sent(g, update)


def sent(g: Genome, update: unsum.Update) -> unsum.Update:
    """What becomes of the gradient on its way: scaled, noised, rounded."""
    update = update.map(lambda _name, t: g["scale"] * t)
    if g["noisy"]:
        update = update.map(
            lambda _name, t: t + 10 ** g["noise"] * t.abs().max() * torch.randn_like(t)
        )
    if g["dtype"] in ("float16", "bfloat16"):
        update = update.map(lambda _name, t: t.to(getattr(torch, g["dtype"])))
    return update


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    """The attack on the case, and whether what it claims is so."""
    case = build(genome)
    if not all(bool(torch.isfinite(t).all()) for t in case.update.gradients.values()):
        return Try(genome, "refused")
    start = time.process_time()
    try:
        with deadline(seconds):
            answer = _attacked(genome, case)
    except TooLongError:
        return Try(genome, "stopped", seconds=time.process_time() - start)
    except UnsumError:
        return Try(genome, "refused", seconds=time.process_time() - start)
    return _judged(genome, case, answer, time.process_time() - start)


@dataclass(frozen=True)
class Answer:
    inputs: Tensor | None
    exact: Tensor | None
    targets: Tensor | None
    predicted: float


def _attacked(genome: Genome, case: Case) -> Answer:
    known: dict[str, Any] = {}
    if genome["told"] == "batch size":
        known["batch_size"] = len(case.x)
    if genome["told"] == "labels" and genome["soft"] == "hard":
        known["labels"] = case.Y.argmax(1)
    if genome["method"] == "phong-input":
        granted = len(case.x) if genome["told"] == "batch size" else None
        peeled = unsum.peel(
            case.model,
            unsum.Update(case.update.gradients, batch_size=granted),
            method="phong-input",
        )
        return Answer(peeled.inputs, peeled.exact, None, float(peeled.errors.max()))
    if genome["method"] == "layers":
        leak = unsum.separate(case.model, case.update, loss=genome["loss"], **known)
        peeled = unsum.peel(case.model, case.update, leak)
        return Answer(
            peeled.inputs if peeled.complete else None,
            peeled.exact,
            leak.targets,
            float(peeled.errors.max()),
        )
    leak = unsum.attack(case.model, case.update, loss=genome["loss"], **known)
    return Answer(leak.inputs, leak.inputs_exact, leak.targets, leak.predicted_error)


def _judged(genome: Genome, case: Case, answer: Answer, seconds: float) -> Try:
    if answer.inputs is None or answer.exact is None:
        return Try(genome, "not claimed", predicted=answer.predicted, seconds=seconds)
    true = case.x.flatten(1).double()
    apart = torch.cdist(answer.inputs.flatten(1).double(), true) / true.norm(dim=1).clamp_min(
        1e-300
    )
    apart = apart.nan_to_num(torch.inf)
    claimed = answer.exact
    wrong = float(apart[claimed].amin(1).max()) if bool(claimed.any()) else 0.0
    traced = _sent(case) > TRACE
    missing = float(apart[:, traced].amin(0).max()) if bool(traced.any()) else math.inf
    error = max(wrong, missing)
    off = label_error(case, answer, apart)
    fooled = ""
    if bool(claimed.any()) and not wrong <= FALSE_CLAIM:
        fooled = "a claimed input is none"
    elif bool(claimed.all()) and not missing <= FALSE_CLAIM and genome["method"] != "phong-input":
        fooled = "an input is missing"
    elif bool(claimed.any()) and off > 0.5:
        fooled = "labels"
    ended = "claimed" if bool(claimed.any()) else "not claimed"
    return Try(genome, ended, error, off, answer.predicted, fooled, seconds)


def label_error(case: Case, answer: Answer, apart: Tensor) -> float:
    """The largest distance of a claimed input's target from those of the true samples that it is,
    or in their mean."""
    errors = [0.0]
    assert answer.exact is not None
    for i in answer.exact.nonzero()[:, 0].tolist() if answer.targets is not None else []:
        near = case.Y[apart[i] <= FALSE_CLAIM].double()
        candidates = torch.cat([near, near.mean(0, keepdim=True)]) if len(near) else case.Y.double()
        errors.append(float((candidates - answer.targets[i].double()).abs().amax(1).min()))
    return max(errors)


def _sent(case: Case) -> Tensor:
    """(B,) how much of the first layer's gradient each sample sends, relative to the largest."""
    weight = next(case.model.parameters())
    sizes = []
    for x, y in zip(case.x, case.Y, strict=True):
        (gradient,) = torch.autograd.grad(
            nn.functional.cross_entropy(case.model(x[None]), y[None]), weight
        )
        sizes.append(gradient.double().norm())
    sent = torch.stack(sizes)
    return sent / sent.max().clamp_min(1e-300)
