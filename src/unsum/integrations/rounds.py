"""Weights sent out and weights sent back → what the server sees of one client. Plain mappings, so any framework fits.

One step of SGD with weight decay λ moves the weights by Δ = −η (g + λ w), so g = −Δ/η − λ w. After T steps the same formula
with T η gives the mean of the T gradients, each taken at weights a little further on. A momentum does not show in the
first step; afterwards it weighs the steps unevenly, which the formula knows nothing of.

BatchNorm's running statistics travel with the weights, and they speak of the batch, too. In train mode a layer of momentum m
moves its statistics towards those of the batch:

    running ← (1 − m) running + m (the batch's)       counter ← counter + 1

so the counter gives the number of local steps away and, if there was one step, the server reads the batch's mean and variance
of every channel off the difference. Noise on gradients does not change that; only keeping the statistics back does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unsum.errors import UnsumError, shown
from unsum.files.naming import named_as
from unsum.local_training import LocalTraining
from unsum.update import Update


@dataclass(frozen=True)
class Statistics:
    """`layers` whose statistics were sent and had moved; the batch's `means` and `variances` of each where they can be read."""

    layers: tuple[str, ...] = ()
    steps: int | None = None
    means: dict[str, Tensor] = field(default_factory=dict)
    variances: dict[str, Tensor] = field(default_factory=dict)

    @property
    def note(self) -> str | None:
        """What they give away, in one sentence."""
        if not self.layers:
            return None
        told = f"BatchNorm's statistics of {len(self.layers)} layers were sent along"
        if self.means:
            channels = sum(len(mean) for mean in self.means.values())
            return f"{told}: the batch's mean and variance of {channels} channels can be read off them."
        if self.steps is not None:
            return f"{told}: their counters say that the client took {self.steps} local steps."
        return f"{told}: they average those of the client's batches."


def read_statistics(model: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Statistics:
    """From two state dicts under the model's own names; under other names nothing is read."""
    moved: list[str] = []
    counted: set[int] = set()
    means: dict[str, Tensor] = {}
    variances: dict[str, Tensor] = {}
    for layer, module in model.named_modules():
        mean, variance, counter = (f"{layer}.{part}" for part in ("running_mean", "running_var", "num_batches_tracked"))
        if not isinstance(module, _BatchNorm) or mean not in before or bool((before[mean] == after[mean]).all()):
            continue
        moved.append(layer)
        if counter not in before:
            continue
        count = _whole(after[counter])
        counted.add(count - _whole(before[counter]))
        share = _share(module, count)
        if variance in before and share is not None:
            means[layer] = _batch_value(before[mean], after[mean], share)
            variances[layer] = _batch_value(before[variance], after[variance], share)
    steps = counted.pop() if len(counted) == 1 else None
    if steps is None or steps < 1:  # layers that disagree, or counters that were reset, say nothing
        return Statistics(tuple(moved))
    return Statistics(tuple(moved), steps, means, variances) if steps == 1 else Statistics(tuple(moved), steps)


def _whole(counter: Tensor) -> int:
    """What a counter says; −1, which no step follows, where a client sent what is no number."""
    return int(counter) if counter.numel() == 1 and bool(torch.isfinite(counter)) else -1


def _share(layer: _BatchNorm, count: int) -> float | None:
    """How much of the new statistics is the last batch; without a momentum, BatchNorm keeps a plain average."""
    if layer.momentum is not None:
        return layer.momentum or None
    return 1 / count if count > 0 else None


def _batch_value(before: Tensor, after: Tensor, share: float) -> Tensor:
    return before.double() + (after.double() - before.double()) / share


@dataclass(frozen=True)
class Seen:
    """What one round shows the server of one client."""

    update: Update
    statistics: Statistics


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
        before, after: state dicts (or the parameters alone) as tensors or arrays, in the same order under the same names.
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
        notes.append(f"The client took {steps} local steps; the update holds the mean of their gradients.")
    update = Update.from_delta(
        named,
        rate,
        notes=tuple(notes),
        num_examples=num_examples or None,
        batch_size=known.samples if steps == known.epochs else None,
        training=replace(known, steps=steps) if steps % known.epochs == 0 else None,
    )
    if known.weight_decay:
        starts, _ = named_as(model, first, ordered=True)
        gradients = {name: g - known.weight_decay * starts[name] for name, g in update.gradients.items()}
        update = replace(update, gradients=gradients)
    return Seen(update, statistics)


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
    """after − before; counters, too, become numbers that a gradient can hold, and are left out later by their names."""
    if not before.is_floating_point():
        return after.double() - before.double()
    return after.to(before.dtype) - before


def _check_alike(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    odd = next(iter(before.keys() ^ after.keys()), None)
    if odd is not None:
        side = "sent out only" if odd in before else "sent back only"
        raise UnsumError(
            f"{shown(odd)} was {side}; an audit needs the weights before and after, so let clients send back what they were sent."
        )
    odd = next((name for name in before if before[name].shape != after[name].shape), None)
    if odd is not None:
        shapes = f"{tuple(before[odd].shape)} and came back as {tuple(after[odd].shape)}"
        raise UnsumError(f"{shown(odd)} was sent out as {shapes}; let clients send back what they were sent.")
