"""A client that takes several steps of SGD, and what every step saw."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from unsum import Update
from unsum.local_training import LocalTraining


class Client:
    """A body with a ReLU and a head; trains by SGD and remembers the features that every step
    saw."""

    def __init__(
        self, *, seed: int = 0, bias: bool = True, features: int = 96, classes: int = 60
    ) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(40, features), nn.ReLU(), nn.Linear(features, classes, bias=bias)
        )
        self.images, self.labels = 2 * torch.randn(8, 40), torch.randperm(classes)[:8]

    def sends(self, training: LocalTraining, size: int, rate: float) -> tuple[Update, Tensor]:
        """The update, and the features of the samples in the step that saw each first."""
        local = copy.deepcopy(self.model)
        settings = {"momentum": training.momentum, "weight_decay": training.weight_decay}
        optimizer = torch.optim.SGD(local.parameters(), lr=rate, **settings)
        features = []
        for step in range(training.steps):
            chosen = torch.arange(step * size, (step + 1) * size) % len(self.images)
            features.append(local[:2](self.images[chosen]).detach())
            optimizer.zero_grad()
            nn.functional.cross_entropy(local(self.images[chosen]), self.labels[chosen]).backward()
            optimizer.step()
        before = dict(self.model.named_parameters())
        delta = {name: (value - before[name]).detach() for name, value in local.named_parameters()}
        divisor = None if training.learning_rate is None else rate * training.steps
        update = Update.from_delta(delta, divisor, training=training)
        if training.weight_decay:  # as `seen` does: one step's decay at the weights that were sent
            gradients = {
                n: g - training.weight_decay * before[n].detach()
                for n, g in update.gradients.items()
            }
            update = Update(gradients, "delta", divisor, training=training)
        return update, torch.cat(features)[: len(self.images)]
