"""Weights sent out and weights sent back → what the server sees of one client. Plain mappings, so
any framework fits.

One step of SGD with weight decay λ moves the weights by Δ = −η (g + λ w), so g = −Δ/η − λ w. After
T steps the same formula with T η gives the mean of the T gradients, each taken at weights a little
further on. A momentum does not show in the first step; afterwards it weighs the steps unevenly,
which the formula knows nothing of.

BatchNorm's running statistics travel with the weights, and they speak of the batch, too
(`batch_statistics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unsum.batch_statistics import BatchStatistics, read_statistics
from unsum.errors import UnsumError, shown
from unsum.files.naming import named_as
from unsum.local_training import LocalTraining
from unsum.update import Update


@dataclass(frozen=True)
class Seen:
    """What one round shows the server of one client."""

    update: Update

    @property
    def statistics(self) -> BatchStatistics:
        return self.update.statistics


def seen(
    model: nn.Module,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    training: LocalTraining | None = None,
    *,
    num_examples: int | None = None,
) -> Seen:
    """The update behind the weights that were sent to a client and those it sent back.

    Args:
        model: whose names and shapes they have; its own weights are not looked at.
        before, after: state dicts (or the parameters alone) as tensors or arrays, in the same order
            under the same names.
        training: what the server knows of the client's training.
        num_examples: as the client reported it.
    """
    known = training or LocalTraining()
    first, second = _tensors(before), _tensors(after)
    _check_alike(first, second)
    statistics = read_statistics(model, first, second)
    delta = {name: _moved(first[name], second[name]) for name in first}
    named, notes = named_as(model, delta, ordered=True)
    steps = known.steps or statistics.steps or 1
    rate = None if known.learning_rate is None else known.learning_rate * steps
    if steps > 1:
        notes.append(
            f"The client took {steps} local steps; the update holds the mean of their gradients."
        )
    update = Update.from_delta(
        named,
        rate,
        notes=tuple(notes),
        num_examples=num_examples or None,
        batch_size=known.samples if steps == known.epochs else None,
        training=replace(known, steps=steps) if steps % known.epochs == 0 else None,
        statistics=statistics,
    )
    if known.weight_decay:
        starts, _ = named_as(model, first, ordered=True)
        gradients = {
            name: g - known.weight_decay * starts[name] for name, g in update.gradients.items()
        }
        update = replace(update, gradients=gradients)
    return Seen(update)


def fill(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Put what was sent into `model`; what was not sent (buffers, say) stays as it is."""
    tensors = _tensors(weights)
    own = model.state_dict()
    if tensors.keys() <= own.keys():
        model.load_state_dict(tensors, strict=False)
        return
    if [t.shape for t in tensors.values()] == [t.shape for t in own.values()]:
        model.load_state_dict(dict(zip(own, tensors.values(), strict=True)))
        return
    named, _ = named_as(model, tensors, ordered=True)
    model.load_state_dict(named, strict=False)


def _tensors(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value).detach().cpu() for name, value in weights.items()}


def _moved(before: Tensor, after: Tensor) -> Tensor:
    """after − before; counters, too, become numbers that a gradient can hold, and are left out
    later by their names."""
    if not before.is_floating_point():
        return after.double() - before.double()
    return after.to(before.dtype) - before


def _check_alike(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    odd = next(iter(before.keys() ^ after.keys()), None)
    if odd is not None:
        side = "sent out only" if odd in before else "sent back only"
        raise UnsumError(
            f"{shown(odd)} was {side}; an audit needs the weights before and after, so let clients "
            "send back what they were sent."
        )
    odd = next((name for name in before if before[name].shape != after[name].shape), None)
    if odd is not None:
        shapes = f"{tuple(before[odd].shape)} and came back as {tuple(after[odd].shape)}"
        raise UnsumError(
            f"{shown(odd)} was sent out as {shapes}; let clients send back what they were sent."
        )
