"""Can a claim about maps be fooled? Small networks that end in convolutions, each attacked and held
against its truth.

Bred from what two convolutions' spaces cannot see: twins and mixtures, faint samples, a mode or
statistics that are declared wrongly, rounding, noise and weight decay on the gradient, losses that
nobody declared, one tensor that was forged. A claim is false when a found sample's features, or its
maps, are more than 1 % away from every true one's, when a sample that sends more than 1e-5 of the
first convolution's gradient is missing, or when a label is wrong. Where the answer says that a
factor of all maps is open, maps are compared but for that factor.
"""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unsum
from unsum.batch_statistics import BatchStatistics, read_statistics
from unsum_bench.scripts.fool.common import (
    FALSE_CLAIM,
    TRACE,
    WEIGHTS,
    WRONG_TARGET,
    Genome,
    Try,
    false_count,
    relative_weights,
)
from unsum_bench.scripts.fool.judge import Verdict, nearest, timed

# Gene → its range; whole numbers are rounded, and logarithms are of base ten.
GENES = {
    "classes": (1.51, 8.49), "batch": (0.51, 4.49), "channels": (15.51, 64.49), "twin": (-4.5, 0),
    "mixed": (0, 1), "head": (-1, 1.5), "size": (-1, 1), "noise": (-9, -2), "faint": (-7, 0),
    "decay": (-8, -1), "forgery": (-7, 0), "blend": (0, 0.5), "heat": (-0.5, 0.5), "shift": (-1, 1),
}  # fmt: skip
CHOICES = {
    "block": ("plain", "basic", "bottleneck"),
    "side": (3, 3, 4),
    "norm": ("batch", "batch", "batch", "batch", "none", "group"),
    "activation": ("relu", "relu", "relu", "gelu", "tanh"),
    "bias": (False, True),
    "train": (False, True),
    "mode": ("right", "right", "right", "wrong"),  # of the model that the server passes
    "statistics": ("none", "none", "sent", "wrong"),
    "labels": ("random", "distinct", "same"),
    "alike": ("none", "none", "twin", "twin of another label", "mixture", "proportional"),
    "soft": ("hard", "hard", "hard", "smooth", "mixup"),
    "loss": ("cross-entropy", "cross-entropy", "temperature", "bce", "mse", "weighted"),
    "declared": (False, False, True),
    "told": ("nothing", "nothing", "batch size"),
    "reduction": ("mean", "mean", "sum"),
    "scale": (1.0, 1.0, 2.0, 0.1),
    "weights are": WEIGHTS,
    "harm": ("none", "none", "none", "noise", "decay", "faint", "one tensor"),
    "dtype": ("float32", "float32", "float32", "float64", "float16", "bfloat16"),
}
ORDINARY = {
    "classes": (3.51, 8.49),
    "batch": (0.51, 3.49),
    "channels": (35.51, 64.49),
    "head": (-0.2, 0.5),
    "size": (-0.2, 0.2),
}
ORDINARY_CHOICES = {
    "side": (3,), "norm": ("batch",), "mode": ("right",), "statistics": ("none",),
    "alike": ("none",), "soft": ("hard",), "loss": ("cross-entropy",), "declared": (False,),
    "reduction": ("mean",), "scale": (1.0,), "harm": ("none",), "dtype": ("float32",),
}  # fmt: skip
_ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    return draw_genome(chance, Ranges(GENES, CHOICES, ORDINARY, ORDINARY_CHOICES), tame=tame)


@dataclass(frozen=True)
class Ranges:
    """Genes and choices, and those of ordinary cases."""

    genes: dict[str, tuple[float, float]]
    choices: dict[str, tuple[Any, ...]]
    ordinary: dict[str, tuple[float, float]]
    ordinary_choices: dict[str, tuple[Any, ...]]


def draw_genome(chance: random.Random, ranges: Ranges, *, tame: bool) -> Genome:
    """Anywhere, but for a share of genes that are ordinary; a tame one has them all so."""
    share = 1.0 if tame else chance.random()
    genome: Genome = {"seed": chance.randrange(1 << 30)}
    for name, ends in ranges.genes.items():
        genome[name] = chance.uniform(
            *(ranges.ordinary.get(name, ends) if chance.random() < share else ends)
        )
    for name, values in ranges.choices.items():
        usual = tame or chance.random() < share
        genome[name] = chance.choice(ranges.ordinary_choices.get(name, values) if usual else values)
    return genome


def kind(genome: Genome) -> str:
    named = (
        "block",
        "norm",
        "train",
        "mode",
        "statistics",
        "alike",
        "soft",
        "loss",
        "told",
        "weights are",
        "harm",
        "dtype",
    )
    return ", ".join(f"{name} {genome[name]}" for name in named)


class Block(nn.Module):
    """What reads the maps: two convolutions, or a bottleneck's three; with a shortcut but where it
    is plain."""

    def __init__(self, g: Genome) -> None:
        super().__init__()
        narrow = round(g["channels"])
        wide, sizes = (2 * narrow, (1, 3, 1)) if g["block"] == "bottleneck" else (narrow, (3, 3))
        ends = [wide, *[narrow] * (len(sizes) - 1), wide]
        parts = []
        for size, n, m in zip(sizes, ends[:-1], ends[1:], strict=True):
            norm = {"batch": nn.BatchNorm2d, "group": lambda c: nn.GroupNorm(1, c)}.get(
                g["norm"], lambda _: nn.Identity()
            )
            parts += [
                nn.Conv2d(n, m, size, 1, size // 2, bias=g["bias"]),
                norm(m),
                _ACTIVATIONS[g["activation"]](),
            ]
        self.parts, self.end, self.shortcut = (
            nn.Sequential(*parts[:-1]),
            parts[-1],
            g["block"] != "plain",
        )
        self.channels = wide

    def forward(self, x: Tensor) -> Tensor:
        y = self.parts(x)
        return self.end(y + x if self.shortcut else y)


def _network(g: Genome) -> nn.Sequential:
    """For pictures whose maps have the genome's side; BatchNorm has weights of its own and
    statistics of some pictures."""
    block = Block(g)
    stem = nn.Sequential(nn.Conv2d(3, block.channels, 3, 2, 1), nn.ReLU())
    head = nn.Linear(block.channels, round(g["classes"]))
    model = nn.Sequential(stem, block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    with torch.no_grad():
        # up to positive throughout
        stem[0].bias += g.get("lifted", 0.0) * 10 ** g["size"] * torch.rand(block.channels)
        head.weight *= 10 ** g["head"]
        for _ in range(10):
            model(_pictures(g, 8))
    return model.to(torch.float64 if g["dtype"] == "float64" else torch.float32)


def _pictures(g: Genome, number: int) -> Tensor:
    return 10 ** g["size"] * torch.randn(number, 3, 2 * g["side"], 2 * g["side"])


@dataclass(frozen=True)
class Case:
    model: nn.Sequential  # as the server passes it
    update: unsum.Update
    features: Tensor  # (B, H)
    Y: Tensor  # (B, C)
    reads: dict[str, Tensor]  # convolution → what it read, (B, C, h, w)
    shares: Tensor  # (B,) of the first convolution's gradient, relative to the largest


def build(genome: Genome) -> Case:
    g = genome
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(g["seed"])
        model = _network(g)
        x, labels = _batch(g)
        x = x.to(model[-1].weight)
        weights = relative_weights(g.get("weights are", "alike"), labels, g["seed"]).to(x)
        if g["harm"] == "faint":
            weights[-1] = 10 ** g["faint"]
        return _sent(g, model, x, targets(g, labels).to(x), weights)


def _batch(g: Genome) -> tuple[Tensor, Tensor]:
    B, C = round(g["batch"]), round(g["classes"])
    x = _pictures(g, B)
    labels = drawn_labels(g, B, C)
    if g["alike"] == "none":
        return x, labels
    distance = 0.0 if g["twin"] < -4 else 10 ** g["twin"]
    other = {
        "mixture": g["mixed"] * x[:1] + (1 - g["mixed"]) * x[-1:],
        "proportional": (1 + distance) * x[:1],
    }.get(g["alike"], x[:1] + distance * _pictures(g, 1))
    label = labels[:1] + (g["alike"] == "twin of another label")
    return torch.cat([x, other]), torch.cat([labels, label % C])


def drawn_labels(g: Genome, B: int, C: int) -> Tensor:
    some = {"distinct": torch.randperm(C).repeat(B)[:B], "same": torch.full((B,), C - 1)}
    return some.get(g["labels"], torch.randint(C, (B,)))


def targets(g: Genome, labels: Tensor) -> Tensor:
    C = round(g["classes"])
    rows = F.one_hot(labels, C).float()
    if g["soft"] == "mixup":
        rows = (1 - g["blend"]) * rows + g["blend"] * rows.roll(1, 0)
    return rows * (1 - g["blend"]) + g["blend"] / C if g["soft"] == "smooth" else rows


def loss_of(g: Genome, logits: Tensor, Y: Tensor) -> Tensor:
    """(B,) of every sample."""
    if g["loss"] == "bce":
        return F.binary_cross_entropy_with_logits(logits, Y, reduction="none").mean(1)
    if g["loss"] == "mse":
        return F.mse_loss(logits, Y, reduction="none").mean(1)
    heat = 10 ** g["heat"] if g["loss"] == "temperature" else 1.0
    each = -(Y * (logits / heat).log_softmax(1)).sum(1)
    return each * (1 + Y.argmax(1) % 3) if g["loss"] == "weighted" else each


def _sent(g: Genome, model: nn.Sequential, x: Tensor, Y: Tensor, weights: Tensor) -> Case:
    """One pass of the client, with everything that the truth needs of it."""
    client = copy.deepcopy(model).train(g["train"])
    reads: dict[str, Tensor] = {}
    written: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            reads[name], written[name] = inputs[0].detach(), output
            return output.clone()

        return hook

    watched = {
        name: m for name, m in client.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)
    }
    for name, module in watched.items():
        module.register_forward_hook(keep(name))
    total = (loss_of(g, client(x), Y) * weights).sum() / (len(x) if g["reduction"] == "mean" else 1)
    parameters = dict(client.named_parameters())
    first = next(
        name
        for name, m in watched.items()
        if name != "0.0" and getattr(m, "kernel_size", 0) == (3, 3)
    )
    found = torch.autograd.grad(total, [*parameters.values(), written[first]])
    gradients = dict(zip(parameters, found, strict=False))
    patches, delta = F.unfold(reads[first], 3, padding=1).double(), found[-1].flatten(2).double()
    shares = (delta @ patches.mT).flatten(1).norm(dim=1)
    update = unsum.Update(
        harmed(g, model, gradients),
        reduction=g["reduction"],
        statistics=_statistics(g, model, client),
    )
    update = update.map(lambda _, t: t.to(getattr(torch, g["dtype"])))
    model.train(g["train"] == (g["mode"] == "right"))
    return Case(model, update, reads["4"], Y, reads, shares / shares.max().clamp_min(1e-300))


def _statistics(g: Genome, model: nn.Module, client: nn.Module) -> BatchStatistics:
    if g["statistics"] == "none" or not g["train"] or g["norm"] != "batch":
        return BatchStatistics()
    read = read_statistics(model, model.state_dict(), client.state_dict())
    wrong = g["shift"] if g["statistics"] == "wrong" else 0.0
    return replace(
        read, means={name: mean + wrong * mean.std() for name, mean in read.means.items()}
    )


def harmed(g: Genome, model: nn.Module, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """What becomes of the gradient on its way."""
    sent = {name: g["scale"] * t for name, t in gradients.items()}
    if g["harm"] == "noise":
        return {
            name: t + 10 ** g["noise"] * t.abs().max() * torch.randn_like(t)
            for name, t in sent.items()
        }
    if g["harm"] == "decay":
        weights = dict(model.named_parameters())
        return {name: t + 10 ** g["decay"] * weights[name].detach() for name, t in sent.items()}
    if g["harm"] == "one tensor":
        name = list(sent)[g["seed"] % len(sent)]
        return sent | {name: sent[name] * (1 + 10 ** g["forgery"])}
    return sent


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    case = build(genome)
    if not all(bool(torch.isfinite(t).all()) for t in case.update.gradients.values()):
        return Try(genome, "refused")
    known = granted(genome, len(case.Y))
    return timed(
        genome,
        seconds,
        lambda: unsum.separate(case.model, case.update, "spans", **known),
        lambda leak: _verdict(case, leak),
        lambda leak: nearest(case.features, leak),
    )


def granted(genome: Genome, B: int) -> dict[str, Any]:
    """What the attack is told."""
    declared = genome["declared"] and genome["loss"] in ("cross-entropy", "bce", "mse")
    size = {"batch_size": B} if genome["told"] == "batch size" else {}
    return size | {"loss": genome["loss"] if declared else None}


def _verdict(case: Case, leak: unsum.Leak) -> Verdict:
    """Errors of features and maps, of labels, and how a claim of them would be false."""
    if leak.batch_size == 0:
        return math.inf, math.inf, "a claim of nothing"
    name, maps = next(iter(leak.inner.items()))
    true = case.reads[name].double().flatten(1)
    apart = apart_from(leak.features, case.features)
    inner = maps.double().flatten(1)
    if any("one factor that all maps have in common" in note for note in leak.notes):
        near = true[apart.argmin(1)]
        inner = inner * float((inner * near).sum() / inner.square().sum().clamp_min(1e-300))
    apart = torch.maximum(apart, apart_from(inner, true))
    *errors, how = judged(apart, case.shares, case.Y, leak.targets)
    return *errors, how or false_count(leak, case.Y.argmax(1))


def judged(apart: Tensor, shares: Tensor, Y: Tensor, targets: Tensor) -> Verdict:
    """Of R found and B true samples at distances (R, B): errors, of labels too, and how a claim of
    them would be false."""
    wrong, missing = float(apart.amin(1).max()), float(apart[:, shares > TRACE].amin(0).max())
    off = max(label_error(Y[apart[i] <= FALSE_CLAIM], targets[i]) for i in range(len(apart)))
    how = (
        "a claimed sample is none"
        if not wrong <= FALSE_CLAIM
        else "a sample is missing"
        if not missing <= FALSE_CLAIM
        else ""
    )
    return max(wrong, missing), off, how or ("labels" if not off <= WRONG_TARGET else "")


def apart_from(found: Tensor, true: Tensor) -> Tensor:
    """(R, B) distances, relative to the true ones."""
    true = true.double().flatten(1)
    distances = torch.cdist(found.double().flatten(1), true) / true.norm(dim=1).clamp_min(1e-300)
    return distances.nan_to_num(math.inf)


def label_error(near: Tensor, found: Tensor) -> float:
    """How far a target is from those of the samples that it may be of."""
    return float((near.double() - found.double()).abs().amax(1).min()) if len(near) else 1.0
