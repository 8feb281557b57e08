"""Networks that do not compute what they look like: scaled logits, subclasses, hooks and branches,
traceable or not; layers that do so in train mode alone, beyond some size, or in the backward pass.
"""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import unsum
from unsum_bench.scripts.cases import Case
from unsum_bench.scripts.fool.common import FALSE_CLAIM, Genome, Try
from unsum_bench.scripts.fool.judge import Verdict, against_truth, timed

GENES = {
    "factor": (-1.5, 1.5),
    "classes": (4, 12),
    "batch": (1, 5),
    "inputs": (6, 24),
    "size": (-1, 1),
}
CHOICES = {
    "twist": (
        "none", "none", "scaled", "in place", "residual", "soft cap", "train mode", "log softmax",
        "twice", "tied", "subclass", "hook on input", "hook on output", "hook on weight",
        "hook on model", "weight norm", "subclass in train mode", "clipped subclass",
        "clipped activation", "scaled input", "scaled hidden", "scaled by the batch",
        "hook on hidden", "reversed gradient", "body twice", "body residual", "shared body",
        "dropout", "pruned",
    ),
    "layer": ("head", "body", "first"),  # that is subclassed or hooked
    "traceable": (False, True),
    "wrapped": (False, False, False, True),
    "zeros": (False, False, False, True),  # a head that is fresh, and zero
    "method": ("exact", "exact", "spans", "attack"),
    "train": (True, False),
    "handed over": ("as it is", "as it is", "in eval mode"),  # the client's mode is not known
}  # fmt: skip
_WIDTH, _CLIP, _DROPPED = 40, 6.0, 0.3


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    """Anywhere in all ranges; there is no easier place to set out from."""
    del tame
    return {name: chance.uniform(*ends) for name, ends in GENES.items()} | {
        name: chance.choice(values) for name, values in CHOICES.items()
    } | {"seed": chance.randrange(1 << 30)}  # fmt: skip


def kind(genome: Genome) -> str:
    named = ("twist", "layer", "traceable", "wrapped", "method", "handed over")
    return ", ".join(f"{name} {genome[name]}" for name in named)


class Scaled(nn.Linear):
    """A dense layer that scales what it reads."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.factor * x)


class ScaledInTrainMode(Scaled):
    """The same in train mode; a plain layer in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else nn.Linear.forward(self, x)


class Clipped(nn.Linear):
    """Clips what it reads, at more than usual inputs have."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(-_CLIP, _CLIP))


class ClippedActivation(nn.LeakyReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(max=_CLIP)


class _Reversed(torch.autograd.Function):
    """Gradient reversal, as adversarial training of domains has it."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Network(nn.Module):
    """Three dense layers, with the twist of a genome; `read` is what each was called with."""

    def __init__(self, genome: Genome) -> None:
        super().__init__()
        self.twist, self.factor = genome["twist"], 10 ** genome["factor"]
        self.traceable = genome["traceable"]
        inputs, classes = round(genome["inputs"]), round(genome["classes"])
        self.head, self.first = nn.Linear(_WIDTH, classes), nn.Linear(inputs, _WIDTH)
        self.body = nn.Linear(_WIDTH, _WIDTH)
        self.bend = ClippedActivation() if self.twist == "clipped activation" else nn.LeakyReLU()
        if genome["zeros"]:
            nn.init.zeros_(self.head.weight)
        self.read: dict[str, Tensor] = {}
        self._change(genome["layer"])

    def _change(self, name: str) -> None:
        layer = getattr(self, name)
        subclasses = {
            "subclass": Scaled,
            "subclass in train mode": ScaledInTrainMode,
            "clipped subclass": Clipped,
        }
        if self.twist in subclasses:
            layer.__class__ = subclasses[self.twist]
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
        elif self.twist == "pruned":
            prune.random_unstructured(layer, "weight", 0.3)

    def forward(self, x: Tensor) -> Tensor:
        if not self.traceable:
            assert bool(x.isfinite().all()), "not a number"
        return self._after_head(self._called("head", self._hidden(x)))

    def _called(self, name: str, x: Tensor) -> Tensor:
        self.read[name] = x
        return getattr(self, name)(x)

    def _hidden(self, x: Tensor) -> Tensor:
        x = self.bend(self._called("first", self.factor * x if self.twist == "scaled input" else x))
        x = self._between(x)
        y = self.bend(self._called("body", x))
        if self.twist == "body twice":
            y = self.bend(self.body(y))
        if self.twist == "body residual":
            y = y + x
        if self.twist == "shared body":
            y = y + 0.1 * (y @ self.body.weight)
        if self.twist == "tied":
            y = y + (y[:, : len(self.head.weight)] @ self.head.weight)
        return self.factor * y if self.twist == "train mode" and self.training else y

    def _between(self, x: Tensor) -> Tensor:
        """From the first layer to the second."""
        if self.twist == "scaled hidden":
            return self.factor * x
        if self.twist == "scaled by the batch":
            return x / x.abs().mean()
        if self.twist == "reversed gradient":
            return _Reversed.apply(x)
        if self.twist == "dropout":
            return nn.functional.dropout(x, _DROPPED, self.training)
        if self.twist == "hook on hidden" and not self.traceable and x.requires_grad:
            x.register_hook(lambda gradient: self.factor * gradient)
        return x

    def _after_head(self, z: Tensor) -> Tensor:
        if self.twist == "scaled":
            return self.factor * z
        if self.twist == "in place":
            return z.mul_(self.factor)
        if self.twist == "residual":
            return z + self.factor * self.read["head"][:, : z.shape[1]]
        if self.twist == "soft cap":
            return self.factor * torch.tanh(z / self.factor)
        if self.twist == "twice":
            return z + self.head(self.read["head"].flip(1))
        return z.log_softmax(1) if self.twist == "log softmax" else z


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    """The attack on the network, and whether what it claims is so."""
    torch.manual_seed(genome["seed"])
    network = Network(genome)
    x = 10 ** genome["size"] * torch.randn(round(genome["batch"]), round(genome["inputs"]))
    targets = torch.randint(round(genome["classes"]), (len(x),))
    model = nn.DataParallel(network) if genome["wrapped"] else network
    model.train(genome["train"])
    logits = model(x)  # once: dropout draws anew in every pass
    nn.functional.cross_entropy(logits, targets).backward()
    read = {name: tensor.detach() for name, tensor in network.read.items()}
    update = unsum.Update(
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    )
    model.zero_grad()
    if genome["handed over"] == "in eval mode":
        model.eval()
    Y = nn.functional.one_hot(targets, logits.shape[1]).double()
    case = Case(nn.Linear(1, 1), update, read["head"], Y)
    network.read.clear()
    judge = partial(_judged, case, logits.detach().double().softmax(1) - Y, read | {"": x})
    return timed(genome, seconds, partial(_attacked, genome, model, update), judge)


def _attacked(genome: Genome, model: nn.Module, update: unsum.Update) -> unsum.Leak:
    known: dict[str, Any] = {"seed": genome["seed"] % 97}
    if genome["method"] == "attack":
        return unsum.attack(model, update, **known)
    return unsum.separate(model, update, genome["method"], **known)


def _judged(case: Case, G: Tensor, read: dict[str, Tensor], leak: unsum.Leak) -> Verdict:
    """Features and labels as elsewhere; what layers read, and inputs that are called exact, must be
    the client's, too."""
    if leak.batch_size == 0:
        return math.inf, math.inf, "no sample"
    error, label_error, bad = against_truth(case, G, leak)
    claimed = {name.removeprefix("module."): found for name, found in leak.inner.items()}
    if leak.inputs is not None and leak.inputs_exact is not None:
        claimed[""] = leak.inputs[leak.inputs_exact]
    for name, found in claimed.items():
        if len(found):
            found = found.flatten(1).double()
            off = float(
                torch.cdist(found, read[name].double()).amin(1).div(found.norm(dim=1)).max()
            )
            error, bad = (
                max(error, off),
                bad or ("" if off <= FALSE_CLAIM else f"what {name or 'the model'} read"),
            )
    return error, label_error, bad
