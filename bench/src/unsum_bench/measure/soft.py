"""The soft-label paper's tables: how often one sample's smoothed or mixed label comes back, over
many draws.

Every draw is one photo (or two, mixed) through one network in eval mode; the attack gets the head's
gradient alone, without that of its bias unless the declaration says otherwise, as in the paper.
Draws are independent of each other: with several threads on a CPU they are dealt out to as many
processes of one thread each, which changes no figure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn

from unsum.head import collect_features, find_head
from unsum.separate import separate
from unsum.update import Update
from unsum_bench.declare import Cell
from unsum_bench.material import Material
from unsum_bench.measure.round import defenses, draw, network

_RECOVERED = 1e-3  # largest error of any entry of the label
_DRAWS = 10_000  # seeds of one cell's draws stay apart from another's
_DEALT = 5  # draws that a process takes at a time: few, so that none is left waiting at the end


def soft(cell: Cell, material: Material) -> dict[str, float]:
    """Shares of the draws: recovered, claimed by the attack itself; and the median of the largest
    error of any entry."""
    torch.set_num_threads(1)
    draws = list(_outcomes(_Draws(cell, material, network(cell, material).eval())))
    errors = [error for error, _, _ in draws]
    return {
        "recovered": statistics.mean(error < _RECOVERED for error in errors),
        "claimed": statistics.mean(float(claimed) for _, claimed, _ in draws),
        "target_error": statistics.median(errors),
        "attack_seconds": statistics.mean(seconds for _, _, seconds in draws),
    }


@dataclass(frozen=True)
class _Draws:
    """A cell's draws, by number: (error of the label, whether the attack claims it, seconds of
    processor time)."""

    cell: Cell
    material: Material
    model: nn.Module

    def __call__(self, number: int) -> tuple[float, bool, float]:
        cell, model = self.cell, self.model
        options: dict[str, Any] = dict(cell.attack.options)
        with_bias = bool(options.pop("with_bias", False))
        one = replace(cell, batch=1, seed=cell.seed * _DRAWS + number)
        drawn = draw(one, self.material)
        targets = drawn.targets.to(self.material.device)
        update = _head_update(model, drawn.images.to(self.material.device), targets, with_bias)
        torch.manual_seed(one.seed)
        for defense in defenses(one.defense):
            update = defense(update)
        start = time.process_time()
        leak = separate(model, update, cell.attack.name, seed=one.seed, **options)
        seconds = time.process_time() - start
        claimed = leak.exact or (
            cell.attack.name == "soft" and leak.predicted_error != float("inf")
        )
        # A wrong number of samples is a miss: the largest error that an entry can have.
        error = (
            float((leak.targets.cpu() - targets.cpu()).abs().max()) if leak.batch_size == 1 else 1.0
        )
        return error, claimed, seconds


_OWN: list[_Draws] = []  # what a process of the pool was started with


def _outcomes(draws: _Draws) -> Iterator[tuple[float, bool, float]]:
    material, numbers = draws.material, range(draws.cell.draws)
    if material.threads == 1 or material.device != "cpu":
        yield from map(draws, numbers)
        return
    # Not forked: torch built for CUDA refuses to differentiate in the fork of a process that has
    # done so.
    fresh = get_context("spawn")
    with ProcessPoolExecutor(
        material.threads, fresh, initializer=_begin, initargs=(draws,)
    ) as pool:
        yield from pool.map(_own_draw, numbers, chunksize=_DEALT)


def _begin(draws: _Draws) -> None:
    torch.set_num_threads(1)
    _OWN.append(draws)


def _own_draw(number: int) -> tuple[float, bool, float]:
    return _OWN[-1](number)


def _head_update(
    model: nn.Module, images: torch.Tensor, targets: torch.Tensor, with_bias: bool
) -> Update:
    """The head's part of a client's update: the backbone needs no backward pass for it."""
    name, linear = find_head(model)
    wanted = {"weight": linear.weight} | (
        {"bias": linear.bias} if with_bias and linear.bias is not None else {}
    )
    with torch.enable_grad():
        loss = nn.functional.cross_entropy(linear(collect_features(model, images)), targets)
        gradients = torch.autograd.grad(loss, list(wanted.values()))
    names = [f"{name}.{part}" for part in wanted]
    return Update({key: g.detach() for key, g in zip(names, gradients, strict=True)})
