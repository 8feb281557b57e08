"""The server's side of a cell: the attack that it declares, with nothing but the model, the update
and what it is granted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unsum.active import attack as read_layer
from unsum.attack.chain import run_attack
from unsum.attack.options import AUTO, AttackOptions
from unsum.attack.pictures import with_pictures
from unsum.errors import UnsumError, needed
from unsum.labels import LABEL_RULES, labels
from unsum.leak import Leak
from unsum.match import MATCHERS, match
from unsum.peel import Peeled, peel
from unsum.separate import SEPARATORS, separate
from unsum.separate.options import read_value
from unsum_bench.declare import Cell
from unsum_bench.material import Material
from unsum_bench.measure.pictures import pictures_for
from unsum_bench.measure.round import CellRound


@dataclass(frozen=True)
class FoundLabels:
    """What a label rule answers: (B,) class numbers and nothing else."""

    labels: Tensor


Answer = Leak | Peeled | FoundLabels


def answer(cell: Cell, played: CellRound, material: Material) -> Answer:
    """What the attack found. An attack whose needs are not met refuses, in a sentence."""
    family, name = cell.attack.family, cell.attack.name
    model, update = played.sent.model, played.sent.update
    if family == "server":
        return read_layer(model, update, needed(played.reader, "The layer that the server put in"))
    if family == "labels":
        own = played.drawn.others if LABEL_RULES[name].needs.auxiliary else None
        return FoundLabels(
            labels(model, update, name, batch_size=played.count, auxiliary=own, seed=cell.seed)
        )
    granted = played.sent.targets if cell.attack.granted == "labels" else None
    size = played.count if cell.attack.granted == "batch size" else None
    options: dict[str, Any] = dict(cell.attack.options) | {
        key: read_value(value) for key, value in material.options_of(cell)
    }
    if family == "peeler":
        return _peeled(cell, played, options)
    if name == AUTO:
        known = AttackOptions(AUTO, granted, size, inverse=material.inverse, seed=cell.seed)
        return run_attack(model, update, known)
    if name in [entry.name for entry in MATCHERS]:
        options["auxiliary"] = played.drawn.others if MATCHERS[name].needs.auxiliary else None
        options["label_rule"] = cell.attack.rule or None
        return match(
            model, update, name, labels=granted, batch_size=size, seed=cell.seed, **options
        )
    SEPARATORS[name]  # refuses an unknown name with the nearest ones
    if cell.attack.rule:
        granted, size = (
            labels(model, update, cell.attack.rule, batch_size=played.count, seed=cell.seed),
            None,
        )
    if options.get("start") in ("photos", "reconstruction"):
        options["start_logits"] = _start_logits(str(options["start"]), played, granted, material)
    leak = separate(model, update, name, labels=granted, batch_size=size, seed=cell.seed, **options)
    try:
        return with_pictures(model, update, leak, material.inverse)
    except UnsumError:
        # the inverse is for another size of photos: it may read their maps all the same
        drawing = pictures_for(model, cell.network.size, material).required()
        return replace(leak, images=drawing(leak.features.float().to(material.device)))


def _start_logits(
    start: str, played: CellRound, granted: Tensor | None, material: Material
) -> Tensor:
    """For RGLA: what the model answers to photos of the attacker's own, or to FGLA's pictures of
    the same update."""
    model, update = played.sent.model, played.sent.update
    pictures = played.drawn.others[0][: played.count].to(material.device)
    if start == "reconstruction":
        ratio = with_pictures(
            model, update, separate(model, update, "fgla", labels=granted), material.inverse
        )
        if ratio.images is None:
            raise UnsumError(
                "The start 'reconstruction' needs an inverse that draws FGLA's features; give "
                "--inverse."
            )
        pictures = ratio.images.to(material.device)
    with torch.no_grad():
        answer: Tensor = model(pictures)
    return answer


def _peeled(cell: Cell, played: CellRound, options: dict[str, Any]) -> Peeled:
    """The inputs that a peeler read."""
    model, update = played.sent.model, played.sent.update
    shape = (3, cell.network.size, cell.network.size)
    separator = options.pop("separator", "exact")
    # Some peelers continue a separation; the others ignore it, and go without where there is none.
    leak = (
        separate(model, update, separator, seed=cell.seed)
        if cell.attack.name in ("layers", "residual")
        else None
    )
    given = {"batch_size": played.count} if cell.attack.name == "cocktail" else {}
    return peel(
        model, update, leak, cell.attack.name, shape=shape, seed=cell.seed, **given, **options
    )
