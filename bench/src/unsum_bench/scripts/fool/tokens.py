"""Can a claim about a vision transformer's pictures be fooled? Small transformers, each attacked
and held against its truth.

Bred from what the first layers cannot see: twins and mixtures of pictures, patches that are alike,
faint samples, noise, rounding and weight decay on the gradient, losses that nobody declared, one
tensor that was forged. A claim is false when a found picture is more than 1 % away from every true
one, when one that sends more than 1e-5 of the patch layer's gradient is missing, or when a label is
wrong.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer

import unsum
from unsum_bench.scripts.fool import maps
from unsum_bench.scripts.fool.common import WEIGHTS, Genome, Try, false_count, relative_weights
from unsum_bench.scripts.fool.judge import Verdict, timed

# Gene → its range; whole numbers are rounded, and logarithms are of base ten. What the client does
# to a gradient is as in `maps`.
GENES = {
    "classes": (1.51, 8.49), "batch": (0.51, 3.49), "width": (7.51, 28.49), "depth": (0.51, 2.49),
    "side": (1.51, 3.49), "twin": (-4.5, 0), "mixed": (0, 1), "head": (-1, 1.5), "size": (-1, 1),
    "noise": (-9, -2), "faint": (-7, 0), "decay": (-8, -1), "forgery": (-7, 0), "blend": (0, 0.5),
    "heat": (-0.5, 0.5), "gain": (-0.5, 0.8),
}  # fmt: skip
CHOICES = {
    "norms": ("plain", "plain", "moved"),  # whether LayerNorm has weights and shifts of its own
    "patches": ("any", "any", "some alike", "all alike"),
    "labels": ("random", "distinct", "same"),
    "alike": ("none", "none", "twin", "twin of another label", "mixture", "proportional", "turned"),
    "soft": ("hard", "hard", "hard", "smooth", "mixup"),
    "loss": ("cross-entropy", "cross-entropy", "temperature", "bce", "mse", "weighted"),
    "declared": (False, False, True),
    "told": ("nothing", "batch size", "batch size"),
    "reduction": ("mean", "mean", "sum"),
    "scale": (1.0, 1.0, 2.0, 0.1),
    "frozen": ("nothing", "nothing", "nothing", "positions", "patches"),
    "weights are": WEIGHTS,
    "harm": ("none", "none", "none", "noise", "decay", "faint", "one tensor"),
    "dtype": ("float32", "float32", "float32", "float64", "float16", "bfloat16"),
}
ORDINARY = {
    "classes": (3.51, 8.49),
    "width": (15.51, 28.49),
    "head": (-0.2, 0.5),
    "size": (-0.2, 0.2),
}
ORDINARY_CHOICES = {
    "patches": ("any",), "alike": ("none",), "soft": ("hard",), "loss": ("cross-entropy",),
    "declared": (False,), "reduction": ("mean",), "scale": (1.0,), "frozen": ("nothing",),
    "harm": ("none",), "dtype": ("float32",),
}  # fmt: skip
_PATCH, _HEADS = 4, 4  # pixels to a side of a patch; heads, of four channels at least
_FROZEN = {"positions": "encoder.pos_embedding", "patches": "conv_proj"}


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    return maps.draw_genome(
        chance, maps.Ranges(GENES, CHOICES, ORDINARY, ORDINARY_CHOICES), tame=tame
    )


def kind(genome: Genome) -> str:
    named = (
        "norms",
        "patches",
        "alike",
        "soft",
        "loss",
        "told",
        "weights are",
        "frozen",
        "harm",
        "dtype",
    )
    return ", ".join(f"{name} {genome[name]}" for name in named) + f", B = {round(genome['batch'])}"


@dataclass(frozen=True)
class Case:
    model: nn.Module
    update: unsum.Update
    x: Tensor  # (B, 3, h, h)
    Y: Tensor  # (B, C)
    shares: Tensor  # (B,) of the patch layer's gradient, relative to the largest


def build(genome: Genome) -> Case:
    g = genome
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(g["seed"])
        model = _network(g)
        x, labels = _batch(g)
        weights = relative_weights(g.get("weights are", "alike"), labels, g["seed"])
        if g["harm"] == "faint":
            weights[-1] = 10 ** g["faint"]
        kind_of = next(model.parameters()).dtype
        return _sent(
            g, model, x.to(kind_of), maps.targets(g, labels).to(kind_of), weights.to(kind_of)
        )


def _side(g: Genome) -> int:
    return _PATCH * round(g["side"])


def _network(g: Genome) -> nn.Module:
    width, C = _HEADS * round(g["width"]), round(g["classes"])
    model = VisionTransformer(
        _side(g), _PATCH, round(g["depth"]), _HEADS, width, 2 * width, num_classes=C
    ).eval()
    model.heads.head = nn.Linear(width, C)  # torchvision's is zero
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and g["norms"] == "moved":
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    with torch.no_grad():
        model.heads.head.weight *= 10 ** g["head"]
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and parameter.ndim > 1 and "head" not in name:
                parameter *= 10 ** g["gain"]
    return model.to(torch.float64 if g["dtype"] == "float64" else torch.float32)


def _batch(g: Genome) -> tuple[Tensor, Tensor]:
    B, C, side = round(g["batch"]), round(g["classes"]), _side(g)
    x = 10 ** g["size"] * torch.randn(B, 3, side, side)
    if g["patches"] != "any":  # some places, or all, hold the same patch
        tiled = x[..., :_PATCH, :_PATCH].repeat(1, 1, side // _PATCH, side // _PATCH)
        x = (
            tiled
            if g["patches"] == "all alike"
            else torch.cat([tiled[..., :_PATCH, :], x[..., _PATCH:, :]], 2)
        )
    labels = maps.drawn_labels(g, B, C)
    if g["alike"] == "none":
        return x, labels
    distance = 0.0 if g["twin"] < -4 else 10 ** g["twin"]
    other = {
        "mixture": g["mixed"] * x[:1] + (1 - g["mixed"]) * x[-1:],
        "proportional": (1 + distance) * x[:1],
        "turned": x[:1].roll(_PATCH, -1),  # the same patches at other places
    }.get(g["alike"], x[:1] + distance * x[:1].std() * torch.randn_like(x[:1]))
    label = labels[:1] + (g["alike"] == "twin of another label")
    return torch.cat([x, other]), torch.cat([labels, label % C])


def _sent(g: Genome, model: nn.Module, x: Tensor, Y: Tensor, weights: Tensor) -> Case:
    parameters = {
        n: p
        for n, p in model.named_parameters()
        if not n.startswith(_FROZEN.get(g["frozen"], "nothing"))
    }
    each = maps.loss_of(g, model(x), Y) * weights / (len(x) if g["reduction"] == "mean" else 1)
    watched = model.conv_proj.weight
    sizes = torch.stack(
        [torch.autograd.grad(one, watched, retain_graph=True)[0].double().norm() for one in each]
    )
    gradients = dict(
        zip(parameters, torch.autograd.grad(each.sum(), list(parameters.values())), strict=True)
    )
    update = unsum.Update(maps.harmed(g, model, gradients), reduction=g["reduction"])
    update = update.map(lambda _, t: t.to(getattr(torch, g["dtype"])))
    return Case(model, update, x, Y, sizes / sizes.max().clamp_min(1e-300))


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    case = build(genome)
    if not all(bool(torch.isfinite(t).all()) for t in case.update.gradients.values()):
        return Try(genome, "refused")
    known = maps.granted(genome, len(case.Y))
    return timed(
        genome,
        seconds,
        lambda: unsum.separate(case.model, case.update, "tokens", **known),
        lambda leak: _verdict(case, leak),
    )


def _verdict(case: Case, leak: unsum.Leak) -> Verdict:
    """Errors of pictures and of labels, and how a claim of them would be false."""
    if leak.batch_size == 0 or leak.inputs is None:
        return math.inf, math.inf, "a claim of nothing"
    *errors, how = maps.judged(
        maps.apart_from(leak.inputs, case.x), case.shares, case.Y, leak.targets
    )
    return *errors, how or false_count(leak, case.Y.argmax(1))
