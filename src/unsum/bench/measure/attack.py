"""The server's side of a cell: the attack that it declares, with nothing but the model, the update and what it is granted."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from unsum.active import attack as read_layer
from unsum.attack.pictures import with_pictures
from unsum.attack.recipe import AUTO, attack
from unsum.bench.declare import Cell
from unsum.bench.material import Material
from unsum.bench.measure.round import Round
from unsum.head import find_head
from unsum.labels import LABEL_RULES, labels
from unsum.leak import Leak
from unsum.match import MATCHERS, match
from unsum.peel import peel
from unsum.separate import SEPARATORS, separate


def answer(cell: Cell, played: Round, material: Material) -> Leak:
    """What the attack found. An attack whose needs are not met refuses, in a sentence."""
    family, name = cell.attack.family, cell.attack.name
    model, update = played.model, played.update
    if family == "server":
        assert played.recipe is not None
        return read_layer(model, update, played.recipe)
    if family == "labels":
        return _labels_alone(cell, played)
    known = _granted(cell, played)
    options = dict(cell.attack.options) | {key: read(value) for key, value in material.options_of(cell)}
    if family == "peeler":
        return _peeled(cell, played, options)
    if name == AUTO:
        return attack(model, update, AUTO, inverse=material.inverse, seed=cell.seed, **known)
    if name in [entry.name for entry in MATCHERS]:
        own = played.drawn.others if MATCHERS[name].needs.auxiliary else None
        rule = cell.attack.rule or None
        return match(model, update, name, auxiliary=own, label_rule=rule, seed=cell.seed, **known, **options)
    SEPARATORS[name]  # refuses an unknown name with the nearest ones
    if cell.attack.rule:
        found = labels(model, update, cell.attack.rule, batch_size=played.count, seed=cell.seed)
        known = {"labels": found}
    if options.get("start") == "photos":  # RGLA from the model's output for photos of the attacker's own
        own_photos = played.drawn.others[0][: played.count].to(material.device)
        with torch.no_grad():
            options["start_logits"] = model(own_photos)
    leak = separate(model, update, name, seed=cell.seed, **known, **options)
    return with_pictures(model, update, leak, material.inverse, None, _quiet, None)


def _granted(cell: Cell, played: Round) -> dict[str, Any]:
    if cell.attack.granted == "labels":
        return {"labels": played.targets}
    return {"batch_size": played.count} if cell.attack.granted == "batch size" else {}


def _quiet(_sentence: str) -> None:
    """Cells are short: the run's own bar is progress enough."""


def _peeled(cell: Cell, played: Round, options: dict[str, Any]) -> Leak:
    """The inputs that a peeler read, as a leak that is scored by its pictures."""
    model, update = played.model, played.update
    shape = (3, cell.network.size, cell.network.size)
    # Some peelers continue a separation; the others ignore it, and go without where there is none.
    leak = separate(model, update, seed=cell.seed) if cell.attack.name in ("layers", "residual") else None
    given = {"batch_size": played.count} if cell.attack.name == "cocktail" else {}
    found = peel(model, update, leak, cell.attack.name, shape=shape, seed=cell.seed, **given, **options)
    pictures = found.inputs.float().clamp(0, 1)
    return _pictures_alone(cell, found.method, pictures, float(found.errors.max()), bool(found.exact.all()))


def _pictures_alone(cell: Cell, method: str, pictures: Tensor, predicted: float, exact: bool) -> Leak:
    empty = torch.zeros(len(pictures), cell.network.classes, dtype=torch.float64)
    return Leak(method, empty, empty, empty, math.nan, predicted, exact, images=pictures, pictures_first=True)


def _labels_alone(cell: Cell, played: Round) -> Leak:
    """The labels that a rule found, as a leak that is scored by them alone."""
    rule = cell.attack.name
    own = played.drawn.others if LABEL_RULES[rule].needs.auxiliary else None
    found = labels(played.model, played.update, rule, batch_size=played.count, auxiliary=own, seed=cell.seed)
    C = find_head(played.model)[1].out_features
    rows = nn.functional.one_hot(found.long(), C).double()
    empty = torch.zeros_like(rows)
    return Leak(rule, rows, empty, empty, math.nan, math.inf, exact=False)


def read(text: str) -> Any:
    """An option's value as the command line writes it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
