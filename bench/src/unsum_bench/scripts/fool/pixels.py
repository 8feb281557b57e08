"""Can a claim about pixels be fooled? Small convolutional networks, whose maps are granted, rightly
or not.

Bred from what a replay of the gradient cannot see: pictures that are alike, flat or faint, maps of
another picture or of a mixture, maps of which channels are missing, noise on maps and gradients,
labels exchanged, a BatchNorm with a large ε, dead channels, statistics that were not sent, or
wrongly. A claim is false when a picture that it vouches for is more than 1 % away from the true one
of its place. Where the answer vouches for pictures but for one contrast that all share, they are
compared but for that.
"""

from __future__ import annotations

import copy
import math
import random
import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import unsum
from unsum.invert.pixels import SolvedPixels, solve_pixels
from unsum.invert.pixels.equations import read_by
from unsum.invert.pixels.guess import drawn
from unsum.leak import Leak
from unsum_bench.scripts.fool.common import FALSE_CLAIM, Genome, Try
from unsum_bench.scripts.fool.judge import Verdict, timed
from unsum_bench.scripts.fool.maps import Ranges, draw_genome, harmed

SIDE, CLASSES = 8, 4
FIRST, SECOND = "3", "6"  # convolutions whose input may be granted

GENES = {
    "batch": (0.51, 3.49), "channels": (5.51, 20.49), "contrast": (-2, 1), "offset": (-2, 2),
    "twin": (-5, 0), "map_noise": (-8, -1), "mixed": (0, 1), "noise": (-9, -2), "decay": (-8, -1),
    "forgery": (-7, 0), "epsilon": (-6, -1), "head": (-1, 1.5), "missing": (0, 0.6),
    "shift": (-1, 1),
}  # fmt: skip
CHOICES = {
    "layer": (FIRST, FIRST, SECOND),
    "stride": (1, 2),
    "train": (False, True),
    "statistics": ("none", "none", "sent", "wrong"),
    "pictures": ("drawn", "drawn", "noise", "flat", "twins"),
    "maps": ("true", "true", "noise", "mixture", "stranger", "scaled", "channels missing"),
    "gradient": ("sent", "sent", "noise", "decay", "one tensor", "labels exchanged"),
    "norms": ("fresh", "trained", "dead channels"),
    "dtype": ("float32", "float32", "float32", "float64", "float16"),
}
ORDINARY = {
    "channels": (11.51, 20.49),
    "contrast": (-0.3, 0.3),
    "offset": (-0.5, 0.5),
    "epsilon": (-5.1, -4.9),
    "head": (-0.3, 0.3),
}
ORDINARY_CHOICES = {
    "layer": (FIRST,), "stride": (1,), "statistics": ("none",), "pictures": ("drawn",),
    "maps": ("true",), "gradient": ("sent",), "norms": ("fresh",), "dtype": ("float32",),
}  # fmt: skip


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    return draw_genome(chance, Ranges(GENES, CHOICES, ORDINARY, ORDINARY_CHOICES), tame=tame)


def kind(genome: Genome) -> str:
    named = ("layer", "train", "statistics", "pictures", "maps", "gradient", "norms", "dtype")
    return ", ".join(f"{name} {genome[name]}" for name in named)


@dataclass(frozen=True)
class Case:
    model: nn.Module
    update: unsum.Update
    leak: Leak
    pictures: Tensor


def build(g: Genome) -> Case:
    torch.manual_seed(g["seed"])
    model, x = _network(g), _pictures(g)
    labels = torch.randint(CLASSES, (len(x),))
    client = copy.deepcopy(model).train(g["train"])
    update = unsum.capture(
        client, x, labels, train=g["train"], buffers=g["statistics"] != "none" and g["train"]
    )
    if g["statistics"] == "wrong" and update.statistics.means:
        moved = {
            name: mean + g["shift"] * mean.std() for name, mean in update.statistics.means.items()
        }
        update = replace(update, statistics=replace(update.statistics, means=moved))
    update = replace(
        update, gradients=harmed(g | {"scale": 1.0, "harm": g["gradient"]}, model, update.gradients)
    )
    update = update.map(lambda _, t: t.to(getattr(torch, g["dtype"])))
    model.train(g["train"])
    with torch.no_grad():
        read = copy.deepcopy(model)
        maps = read_by(read, g["layer"], x)
        strangers = read_by(
            copy.deepcopy(model), g["layer"], drawn(len(x), (3, SIDE, SIDE), g["seed"] + 1)
        )
    targets = nn.functional.one_hot(
        labels.roll(1) if g["gradient"] == "labels exchanged" else labels, CLASSES
    ).double()
    known = _granted(g, maps, strangers)
    held = "partly" if g["maps"] == "channels missing" else "inner"
    leak = Leak("true", targets, targets, targets, 0.0, 1e-7, True, **{held: {g["layer"]: known}})
    return Case(model, update, leak, x)


def _network(g: Genome) -> nn.Sequential:
    width = round(g["channels"])
    parts: list[nn.Module] = []
    for inputs, stride in ((3, 1), (width, g["stride"]), (width, 2)):
        norm = nn.BatchNorm2d(width, eps=10 ** g["epsilon"])
        if g["norms"] != "fresh":
            nn.init.uniform_(norm.weight, 0.3, 1.5)
            nn.init.normal_(norm.bias, 0, 0.3)
            nn.init.uniform_(norm.running_var, 0.3, 2)
            nn.init.normal_(norm.running_mean, 0, 0.3)
        if g["norms"] == "dead channels":
            nn.init.zeros_(norm.weight[: width // 3])
        parts += [nn.Conv2d(inputs, width, 3, stride, 1, bias=False), norm, nn.ReLU()]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))
    with torch.no_grad():
        model[-1].weight *= 10 ** g["head"]
    return model


def _pictures(g: Genome) -> Tensor:
    B = round(g["batch"])
    x = (
        torch.randn(B, 3, SIDE, SIDE)
        if g["pictures"] == "noise"
        else drawn(B, (3, SIDE, SIDE), g["seed"])
    )
    if g["pictures"] == "flat":
        x = x.mean((2, 3), keepdim=True) + 10 ** g["twin"] * x
    if g["pictures"] == "twins":
        x = x[:1] + 10 ** g["twin"] * x
    return 10 ** g["contrast"] * x + g["offset"]


def _granted(g: Genome, maps: Tensor, strangers: Tensor) -> Tensor:
    """What the attack takes for exact maps."""
    if g["maps"] == "noise":
        return maps * (1 + 10 ** g["map_noise"] * torch.randn_like(maps))
    if g["maps"] == "mixture":
        return torch.lerp(maps, maps.roll(1, 0) if len(maps) > 1 else strangers, g["mixed"])
    if g["maps"] == "stranger":
        return torch.cat([strangers[:1], maps[1:]])
    if g["maps"] == "scaled":
        return maps * (1 + 10 ** g["map_noise"])
    if g["maps"] == "channels missing":
        return maps.masked_fill(torch.rand(maps.shape[1], 1, 1) < g["missing"], torch.nan)
    return maps


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    case = build(genome)
    if not all(bool(torch.isfinite(t).all()) for t in case.update.gradients.values()):
        return Try(genome, "refused")
    return timed(genome, seconds, lambda: _attacked(case), lambda leak: _verdict(case, leak))


def _attacked(case: Case) -> Leak:
    """The leak with its pictures; `exact` where it vouches for any of them, in whole or but for
    their contrast."""
    found = solve_pixels(case.model, case.update, case.leak, shape=tuple(case.pictures.shape[1:]))
    whole = bool(found.exact.any())
    claimed = found.exact if whole else torch.full_like(found.exact, _but_for_contrast(found))
    errors = found.errors[claimed] if bool(claimed.any()) else found.errors
    return replace(
        case.leak,
        inputs=found.images if whole else None,
        images=found.images,
        inputs_exact=claimed,
        exact=bool(claimed.any()),
        predicted_error=float(errors.max()),
    )


def _but_for_contrast(found: SolvedPixels) -> bool:
    """Whether all pictures are vouched for but for one factor."""
    said = re.search(
        r"But for one contrast that all pictures share, (\d+) of (\d+) are certain",
        " ".join(found.notes),
    )
    return said is not None and said[1] == said[2]


def _verdict(case: Case, leak: Leak) -> Verdict:
    """The error of the pictures that are vouched for, and how a claim of them would be false."""
    assert leak.images is not None
    assert leak.inputs_exact is not None
    found, true = leak.images.double().flatten(1), case.pictures.double().flatten(1)
    if leak.inputs is None:
        found = found * float((found * true).sum() / found.square().sum().clamp_min(1e-300))
    apart = ((found - true).norm(dim=1) / true.norm(dim=1).clamp_min(1e-300)).nan_to_num(math.inf)
    counted = apart[leak.inputs_exact] if leak.exact else apart
    error = float(counted.max())
    return error, 0.0, "" if error <= FALSE_CLAIM else "a picture is another"
