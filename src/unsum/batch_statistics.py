"""What BatchNorm's running statistics give away of a batch, where a client sends them along, as a
whole state dict does.

In train mode a layer of momentum m moves its statistics towards those of the batch:

    running ← (1 − m) running + m (the batch's)       counter ← counter + 1

so the counter gives the number of local steps away and, if there was one step, the server reads the
batch's mean and variance of every channel off the difference. Noise on gradients does not change
that; only keeping the statistics back does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(frozen=True)
class BatchStatistics:
    """`layers` whose statistics were sent and had moved; the batch's `means` and `variances` of
    each where they can be read.

    Variances are those that BatchNorm keeps: Σ (z − mean)² / (n − 1) over the n = B · places values
    of a channel.
    """

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
            return (
                f"{told}: the batch's mean and variance of {channels} channels can be read off "
                "them."
            )
        if self.steps is not None:
            return f"{told}: their counters say that the client took {self.steps} local steps."
        return f"{told}: they average those of the client's batches."


def read_statistics(
    model: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> BatchStatistics:
    """From two state dicts under the model's own names, or in the order of its own; else nothing is
    read."""
    before, after = (_named_as_its_own(model, tensors) for tensors in (before, after))
    moved: list[str] = []
    counted: set[int] = set()
    means: dict[str, Tensor] = {}
    variances: dict[str, Tensor] = {}
    for layer, module in model.named_modules():
        mean, variance, counter = (
            f"{layer}.{part}" for part in ("running_mean", "running_var", "num_batches_tracked")
        )
        if (
            not isinstance(module, _BatchNorm)
            or mean not in before
            or bool((before[mean] == after[mean]).all())
        ):
            continue
        moved.append(layer)
        if counter not in before:
            continue
        count = _whole(after[counter])
        counted.add(count - _whole(before[counter]))
        share = _share(module, count)
        if variance in before and share is not None:
            old, new = (
                [tensors[name].double() for name in (mean, variance)] for tensors in (before, after)
            )
            values = [one + (other - one) / share for one, other in zip(old, new, strict=True)]
            if all(bool(value.isfinite().all()) for value in values):
                means[layer], variances[layer] = values[0], values[1].clamp_min(0)
    steps = counted.pop() if len(counted) == 1 else None
    if steps == 1:
        return BatchStatistics(tuple(moved), steps, means, variances)
    # Layers that disagree, or counters that were reset, say nothing.
    return BatchStatistics(tuple(moved), steps if steps is not None and steps > 1 else None)


def _named_as_its_own(model: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    own = model.state_dict()
    same = not tensors.keys() & own.keys() and [t.shape for t in tensors.values()] == [
        t.shape for t in own.values()
    ]
    return dict(zip(own, tensors.values(), strict=True)) if same else tensors


def _whole(counter: Tensor) -> int:
    """What a counter says; −1, which no step follows, where a client sent what is no number."""
    return int(counter) if counter.numel() == 1 and bool(torch.isfinite(counter)) else -1


def _share(layer: _BatchNorm, count: int) -> float | None:
    """How much of the new statistics is the last batch; without a momentum, BatchNorm keeps a plain
    average."""
    if layer.momentum is not None:
        return layer.momentum or None
    return 1 / count if count > 0 else None
