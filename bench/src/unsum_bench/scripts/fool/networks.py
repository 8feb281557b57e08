"""Networks that do not compute what they look like: scaled logits, subclasses, hooks and branches,
traceable or not.
"""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum_bench.scripts.cases import Case
from unsum_bench.scripts.fool.common import FALSE_CLAIM, Genome, Try
from unsum_bench.scripts.fool.judge import Verdict, against_truth, timed

GENES = {"factor": (-1.5, 1.5), "classes": (4, 12), "batch": (1, 5), "inputs": (6, 24), "size": (-1, 1)}
CHOICES = {
    "twist": (
        "none", "none", "scaled", "in place", "residual", "soft cap", "train mode", "log softmax", "twice", "tied",
        "subclass", "hook on input", "hook on output", "hook on weight", "hook on model", "weight norm",
    ),
    "layer": ("head", "body", "first"),  # that is subclassed or hooked
    "traceable": (False, False, True),
    "wrapped": (False, False, False, True),
    "zeros": (False, False, False, True),  # a head that is fresh, and zero
    "method": ("exact", "exact", "spans", "attack"),
    "train": (True, False),
}  # fmt: skip


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    """Anywhere in all ranges; there is no easier place to set out from."""
    del tame
    return {name: chance.uniform(*ends) for name, ends in GENES.items()} | {
        name: chance.choice(values) for name, values in CHOICES.items()
    } | {"seed": chance.randrange(1 << 30)}  # fmt: skip


def kind(genome: Genome) -> str:
    named = ("twist", "layer", "traceable", "wrapped", "method")
    return ", ".join(f"{name} {genome[name]}" for name in named)


class Scaled(nn.Linear):
    """A dense layer that scales what it reads."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.factor * x)


class Network(nn.Module):
    """Three dense layers, with the twist of a genome; `read` is what the head was called with."""

    def __init__(self, genome: Genome) -> None:
        super().__init__()
        self.twist, self.factor = genome["twist"], 10 ** genome["factor"]
        self.traceable = genome["traceable"]
        inputs, classes = round(genome["inputs"]), round(genome["classes"])
        self.head, self.first, self.body = (
            nn.Linear(32, classes),
            nn.Linear(inputs, 48),
            nn.Linear(48, 32),
        )
        if genome["zeros"]:
            nn.init.zeros_(self.head.weight)
        self.read: list[Tensor] = []
        self._change(genome["layer"])

    def _change(self, name: str) -> None:
        layer = getattr(self, name)
        if self.twist == "subclass":
            layer.__class__ = Scaled
            layer.factor = self.factor
        elif self.twist == "hook on input":
            layer.register_forward_pre_hook(lambda _, inputs: (self.factor * inputs[0],))
        elif self.twist == "hook on output":
            layer.register_forward_hook(lambda _, _inputs, output: self.factor * output)
        elif self.twist == "hook on weight":
            layer.weight.register_hook(lambda gradient: self.factor * gradient)
        elif self.twist == "hook on model":
            self.register_forward_hook(lambda _, _inputs, output: self.factor * output)
        elif self.twist == "weight norm":
            nn.utils.parametrizations.weight_norm(layer)

    def forward(self, x: Tensor) -> Tensor:
        if not self.traceable:
            assert bool(x.isfinite().all()), "not a number"
        x = torch.relu(self.body(torch.relu(self.first(x))))
        if self.twist == "tied":
            x = x + (x[:, : len(self.head.weight)] @ self.head.weight)
        if self.twist == "train mode" and self.training:
            x = self.factor * x
        self.read.append(x)
        z = self.head(x)
        if self.twist == "scaled":
            return self.factor * z
        if self.twist == "in place":
            return z.mul_(self.factor)
        if self.twist == "residual":
            return z + self.factor * x[:, : z.shape[1]]
        if self.twist == "soft cap":
            return self.factor * torch.tanh(z / self.factor)
        if self.twist == "twice":
            return z + self.head(x.flip(1))
        return z.log_softmax(1) if self.twist == "log softmax" else z


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    """The attack on the network, and whether what it claims is so."""
    torch.manual_seed(genome["seed"])
    network = Network(genome)
    x = 10 ** genome["size"] * torch.randn(round(genome["batch"]), round(genome["inputs"]))
    targets = torch.randint(round(genome["classes"]), (len(x),))
    model = nn.DataParallel(network) if genome["wrapped"] else network
    model.train(genome["train"])
    update = unsum.capture(model, x, targets, train=genome["train"])
    network.read.clear()
    with torch.no_grad():
        logits = model(x)
    Y = nn.functional.one_hot(targets, logits.shape[1]).double()
    case = Case(nn.Linear(1, 1), update, network.read[-1].detach(), Y)
    network.read.clear()
    judge = partial(_judged, case, logits.double().softmax(1) - Y, x)
    return timed(genome, seconds, partial(_attacked, genome, model, update), judge)


def _attacked(genome: Genome, model: nn.Module, update: unsum.Update) -> unsum.Leak:
    known: dict[str, Any] = {"seed": genome["seed"] % 97}
    if genome["method"] == "attack":
        return unsum.attack(model, update, **known)
    return unsum.separate(model, update, genome["method"], **known)


def _judged(case: Case, G: Tensor, x: Tensor, leak: unsum.Leak) -> Verdict:
    """Features and labels as elsewhere; inputs that are called exact must be the client's, too."""
    if leak.batch_size == 0:
        return math.inf, math.inf, "no sample"
    error, label_error, bad = against_truth(case, G, leak)
    if leak.inputs is not None and leak.inputs_exact is not None and bool(leak.inputs_exact.any()):
        found = leak.inputs[leak.inputs_exact].flatten(1).double()
        off = float(torch.cdist(found, x.double()).amin(1).div(found.norm(dim=1)).max())
        error, bad = max(error, off), bad or ("inputs" if not off <= FALSE_CLAIM else "")
    return error, label_error, bad
