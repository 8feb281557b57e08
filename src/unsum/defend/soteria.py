"""Soteria (Sun et al. 2021): the head's gradient is not sent for the features that pin the input down most.

With r (B×H) what reaches the head and X the batch,

    score_f = Σ_i ‖∂(Σ_j r_jf)/∂X_i‖ / (r_if + 0.1)

(without BatchNorm in train mode sample i's features depend on X_i alone, and the inner sum is r_if). Its inverse, the feature
over its slope, is to first order how far the input must move for the feature to vanish; so leaving out the features of the
lowest score takes a reconstruction furthest from the true input. The columns of ∇W whose score lies below the percentile are
set to zero; the bias gradient is sent as it is. One backward pass per feature: minutes where there are many thousands.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.client.step import Step, in_mode
from unsum.defend.defense import DEFENSES, ClientDefense
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.update import Update

_OFFSET = 0.1  # keeps features of zero from dividing by zero
_AT_A_TIME = 16  # features differentiated together: each needs a backward pass over the batch in memory


@DEFENSES.register(
    "soteria", summary="zero the head's gradient for this fraction of its inputs, those that pin the images down most"
)
class Soteria(ClientDefense):
    """Zeroes the columns of the head's weight gradient that score below the quantile `fraction` (0.01 in the paper's code)."""

    example = 0.1

    def __init__(self, fraction: float) -> None:
        if not 0 <= fraction <= 1:
            raise UnsumError(f"Soteria needs a fraction of the features between 0 and 1, not {fraction}.")
        super().__init__(fraction)

    def after(self, update: Update, step: Step) -> Update:
        head, _ = find_head(step.model)
        weight = f"{head}.weight" if head else "weight"
        if weight not in update.gradients:
            raise UnsumError(f"{self!r} changes the gradient of {weight!r}, which is not in the update; leave it out.")
        scores = feature_scores(step)
        below = scores < _quantile(scores, self.strength)
        return update.map(lambda name, g: g.masked_fill(below.to(g.device), 0) if name == weight else g)


def feature_scores(step: Step) -> Tensor:
    """(H,) score_f in float64: how strongly the input shows in each feature, relative to the feature's size."""
    images = step.images.detach().clone().requires_grad_(True)
    with in_mode(step.model, step.train), torch.enable_grad():
        features = _features(step, images)
        B, H = features.shape
        norms = []
        for first in range(0, H, _AT_A_TIME):
            chosen = torch.arange(first, min(first + _AT_A_TIME, H), device=features.device)
            directions = torch.zeros(len(chosen), B, H, dtype=features.dtype, device=features.device)
            directions[torch.arange(len(chosen), device=features.device), :, chosen] = 1
            (slopes,) = torch.autograd.grad(features, images, directions, retain_graph=True, is_grads_batched=True)
            norms.append(slopes.flatten(2).norm(dim=2))  # (chosen, B)
    ratio = torch.cat(norms).T.double() / (features.detach().double() + _OFFSET)
    return ratio.sum(0)


def _features(step: Step, images: Tensor) -> Tensor:
    """(B, H) what reaches the head, still attached to `images`."""
    _, linear = find_head(step.model)
    seen: list[Tensor] = []
    hook = linear.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    try:
        step.model(images)
    finally:
        hook.remove()
    return seen[-1].flatten(1)


def _quantile(values: Tensor, fraction: float) -> Tensor:
    """The quantile by linear interpolation between neighbours; torch.quantile refuses vectors of more than 2²⁴ entries."""
    ascending = values.sort().values
    position = fraction * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return ascending[low] + (position - low) * (ascending[high] - ascending[low])
