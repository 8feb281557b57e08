"""Mixup as a defense (Zhang et al. 2018): the client trains on blends of two samples, images and
targets alike.

x̃ = λ x + (1 − λ) x′,   ỹ = λ y + (1 − λ) y′,   λ ~ Beta(α, α)

one λ for the batch; x′ is a random sample of the same batch.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from unsum.client.augment import mixup
from unsum.client.step import ClientStep, Stage
from unsum.defend.defense import DEFENSES, Axis, ClientDefense, require


@DEFENSES.register(
    "mixup", summary="blend each sample with another of the batch, with a weight from Beta(α, α)"
)
class Mixup(ClientDefense):
    """The batch becomes `mixup(…, weight=λ, partner=a random permutation)`; drawn from torch's
    global generator.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 6)
        >>> inputs, labels = torch.randn(3, 8), torch.tensor([4, 4, 1])
        >>> update = unsum.capture(model, inputs, labels, defenses=unsum.Mixup(1.0))
        >>> update.gradients["weight"].shape
        torch.Size([6, 8])
    """

    stage = Stage.BATCH
    axis = Axis("α of Beta(α, α)")

    def __init__(self, alpha: float) -> None:
        super().__init__(
            require(
                0 < alpha < math.inf, "Mixup needs a positive alpha for Beta(alpha, alpha)", alpha
            )
        )

    def before(self, step: ClientStep) -> ClientStep:
        weight = float(torch.distributions.Beta(self.strength, self.strength).sample())
        partner = torch.randperm(len(step.images)).to(step.images.device)
        images, targets = mixup(
            step.images, step.targets, step.classes, weight=weight, partner=partner
        )
        return replace(step, images=images, targets=targets)
