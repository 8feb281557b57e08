"""The soft-label paper's tables: how often one sample's smoothed or mixed label comes back, over many draws.

Every draw is one photo (or two, mixed) through one network in eval mode; the attack gets the head's gradient alone, without that
of its bias unless the declaration says otherwise, as in the paper.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from unsum.bench.declare import Cell
from unsum.bench.material import Material
from unsum.bench.measure.round import defenses, draw, network
from unsum.head import collect_features, find_head
from unsum.leak import Leak
from unsum.separate import separate
from unsum.update import Update

_RECOVERED = 1e-3  # largest error of any entry of the label
_DRAWS = 10_000  # seeds of one cell's draws stay apart from another's


def soft(cell: Cell, material: Material) -> dict[str, float]:
    """Shares of the draws: recovered, claimed by the attack itself; and the median of the largest error of any entry."""
    model = network(cell, material).eval()
    options: dict[str, Any] = dict(cell.attack.options)
    with_bias = bool(options.pop("with_bias", False))
    errors, claimed, seconds = [], 0, 0.0
    for number in range(cell.draws):
        one = replace(cell, batch=1, seed=cell.seed * _DRAWS + number)
        drawn = draw(one, material)
        targets = drawn.targets.to(material.device)
        update = _head_update(model, drawn.images.to(material.device), targets, with_bias)
        torch.manual_seed(one.seed)
        for defense in defenses(one.defense):
            update = defense(update)
        start = time.process_time()
        leak = separate(model, update, cell.attack.name, seed=one.seed, **options)
        seconds += time.process_time() - start
        errors.append(_error(leak, targets.cpu()))
        claimed += leak.exact or (cell.attack.name == "soft" and leak.predicted_error != float("inf"))
    return {
        "recovered": statistics.mean(error < _RECOVERED for error in errors),
        "claimed": claimed / cell.draws,
        "target_error": statistics.median(errors),
        "attack_seconds": seconds / cell.draws,
    }


def _head_update(model: nn.Module, images: torch.Tensor, targets: torch.Tensor, with_bias: bool) -> Update:
    """The head's part of a client's update: the backbone needs no backward pass for it."""
    name, linear = find_head(model)
    wanted = {"weight": linear.weight} | ({"bias": linear.bias} if with_bias and linear.bias is not None else {})
    with torch.enable_grad():
        loss = nn.functional.cross_entropy(linear(collect_features(model, images)), targets)
        gradients = torch.autograd.grad(loss, list(wanted.values()))
    names = [f"{name}.{part}" for part in wanted]
    return Update({key: g.detach() for key, g in zip(names, gradients, strict=True)})


def _error(leak: Leak, target: torch.Tensor) -> float:
    """A wrong number of samples is a miss: the largest error that an entry can have."""
    return float((leak.targets.cpu() - target).abs().max()) if leak.batch_size == 1 else 1.0
