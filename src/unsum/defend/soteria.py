"""Soteria (Sun et al. 2021): the head's gradient is not sent for the features that pin the input
down most.

With r (B×H) what reaches the head and X the batch,

    score_f = Σ_i ‖∂(Σ_j r_jf)/∂X_i‖ / (r_if + 0.1)

(without BatchNorm in train mode sample i's features depend on X_i alone, and the inner sum is
r_if). Its inverse, the feature over its slope, is to first order how far the input must move for
the feature to vanish; so leaving out the features of the lowest score takes a reconstruction
furthest from the true input. The columns of ∇W whose score lies below the percentile are set to
zero; the bias gradient is sent as it is.

A feature that ReLU switches off for the whole batch scores 0 and is among the lowest, though its
column is zero anyway: where many are off, a small fraction changes nothing. That is so in the
published rule too.

The norms need one backward pass per feature, as in the authors' code. Heads with more than 2048
inputs would take a quarter of an hour, so there ‖s‖² is estimated as the mean of ⟨s, v⟩² over
random Gaussian v: one product gives ⟨s, v⟩ for all features at once, and m of them give each norm
to about 1/√(2m).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unsum.client.step import ClientStep, in_mode
from unsum.defend.defense import DEFENSES, FRACTION, ClientDefense, require, whole_number
from unsum.errors import UnsumError
from unsum.gradients import with_features
from unsum.head import find_head
from unsum.update import Update

_OFFSET = 0.1  # keeps features of zero from dividing by zero
_EXACT_UP_TO = 2048  # features: the pooled ResNets are within it
# features differentiated together: each needs a backward pass over the batch in memory
_AT_A_TIME = 16


@DEFENSES.register(
    "soteria",
    summary=(
        "zero the head's gradient for this fraction of its inputs, those that pin the images down "
        "most"
    ),
)
class Soteria(ClientDefense):
    """Zeroes the head's weight-gradient columns that score below the quantile `fraction` (the
    authors' code: 0.01 and 0.6).

    `probes` random directions per sample estimate the scores of heads with more than 2048 inputs; 0
    computes them exactly.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 6)
        >>> inputs, labels = torch.randn(3, 8), torch.tensor([4, 4, 1])
        >>> update = unsum.capture(model, inputs, labels, defenses=unsum.Soteria(0.5))
        >>> int((update.gradients["weight"] == 0).all(dim=0).sum())
        4
    """

    example = 0.1
    axis = FRACTION

    def __init__(self, fraction: float, *, probes: int = 32) -> None:
        what = "Soteria needs a fraction of the features between 0 and 1"
        super().__init__(require(0 <= fraction <= 1, what, fraction))
        self.probes = whole_number(probes, 0, "Soteria needs a number of probes")

    def after(self, update: Update, step: ClientStep) -> Update:
        head, _ = find_head(step.model)
        weight = f"{head}.weight" if head else "weight"
        if weight not in update.gradients:
            raise UnsumError(
                f"{self!r} changes the gradient of {weight!r}, which is not in the update; leave "
                "it out."
            )
        scores = feature_scores(step, self.probes)
        # torch's takes 2²⁴ entries at most
        below = scores < float(np.quantile(scores.cpu().numpy(), self.strength))
        return update.map(
            lambda name, g: g.masked_fill(below.to(g.device), 0) if name == weight else g
        )


def feature_scores(step: ClientStep, probes: int = 0) -> Tensor:
    """(H,) score_f in float64: how strongly each feature moves with the input, relative to its
    size."""
    images = step.images.detach().clone().requires_grad_(True)
    with in_mode(step.model, step.train), torch.enable_grad():
        features, _ = with_features(step.model, find_head(step.model)[1], images)
        if (
            torch.autograd.grad(features.sum(), images, retain_graph=True, allow_unused=True)[0]
            is None
        ):
            raise UnsumError(
                "Soteria scores features by their slopes in the input, and codes that an embedding "
                "looks up have none; take another defense, such as noise."
            )
        if probes == 0 or features.shape[1] <= _EXACT_UP_TO:
            norms = _slope_norms(features, images)
        else:
            norms = _estimated_slope_norms(features, images, probes)
    return (norms.double() / (features.detach().double() + _OFFSET)).sum(0)


def _slope_norms(features: Tensor, images: Tensor) -> Tensor:
    """(B, H) ‖∂(Σ_j r_jf)/∂X_i‖, a backward pass per feature."""
    B, H = features.shape
    norms = []
    for first in range(0, H, _AT_A_TIME):
        chosen = torch.arange(first, min(first + _AT_A_TIME, H), device=features.device)
        directions = torch.zeros(len(chosen), B, H, dtype=features.dtype, device=features.device)
        directions[torch.arange(len(chosen), device=features.device), :, chosen] = 1
        (slopes,) = torch.autograd.grad(
            features, images, directions, retain_graph=True, is_grads_batched=True
        )
        norms.append(slopes.flatten(2).norm(dim=2))  # (chosen, B)
    return torch.cat(norms).T


def _estimated_slope_norms(features: Tensor, images: Tensor, probes: int) -> Tensor:
    """(B, H) the same from random directions; drawn from torch's global generator.

    Jᵀu is linear in u, so its derivative along v with respect to u is J v: the same graph serves
    every probe.
    """
    dummy = torch.zeros_like(features, requires_grad=True)
    (backward,) = torch.autograd.grad(features, images, dummy, create_graph=True)
    squares = torch.zeros_like(features)
    for i in range(len(images)):
        for _ in range(probes):
            direction = torch.zeros_like(images)
            direction[i] = torch.randn_like(images[i])
            (change,) = torch.autograd.grad(backward, dummy, direction, retain_graph=True)
            squares[i] += change.sum(0) ** 2
    return (squares / probes).sqrt().detach()
