"""Batches as a ReLU network makes them, for the adaptive separator: features sparse and
non-negative, a fresh head."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import unsum
from unsum.score import score_samples


@dataclass(frozen=True)
class Case:
    model: nn.Linear
    update: unsum.Update
    features: Tensor
    labels: Tensor

    def defended(self, text: str, seed: int = 0) -> unsum.Update:
        torch.manual_seed(seed + 100)
        return unsum.defend.parse_defense(text)(self.update)

    def scored(self, leak: unsum.Leak) -> tuple[float, float]:
        """Mean cosine and mean relative error over the true samples."""
        rows = score_samples(leak, features=self.features)
        return statistics.mean(r.feature_cosine for r in rows), statistics.mean(
            r.feature_error for r in rows
        )

    def run(self, text: str, method: str, **known: object) -> tuple[float, float]:
        return self.scored(unsum.separate(self.model, self.defended(text), method, **known))


def sparse_case(
    *, same: int = 0, B: int = 6, C: int = 100, H: int = 3000, seed: int = 0, active: float = 0.2
) -> Case:
    """`same` of the labels are alike; features are zero or exponential of mean 3, `active` of them
    not zero."""
    generator = torch.Generator().manual_seed(seed)
    sizes = -3 * torch.rand(B, H, generator=generator).clamp_min(1e-6).log()
    features = sizes * (torch.rand(B, H, generator=generator) < active)
    labels = torch.randperm(C, generator=generator)[:B]
    labels[:same] = labels[0]
    torch.manual_seed(seed + 1)
    model = nn.Linear(H, C)
    return Case(model, unsum.capture(model, features, labels), features, labels)
