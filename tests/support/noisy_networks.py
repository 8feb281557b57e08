"""Five kinds of networks, pictures for them, and what an answer tells of features under noise."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1),
        nn.ReLU(), nn.Flatten(), nn.Linear(256, 30),
    )  # fmt: skip


def smooth() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(768, 30))


def signed() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 200), nn.Tanh(), nn.Linear(200, 30))


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 300), nn.ReLU(), nn.Linear(300, 30))


def normalized() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 30)
    )


def pictures(count: int, seed: int) -> Tensor:
    """Smooth ones, each with a tone of its own."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    return nn.functional.interpolate(coarse, size=16, mode="bilinear")


def leakage(found: Tensor, features: Tensor, guess: Tensor) -> float:
    """1 − ‖f̂ − f‖²/‖m − f‖² on average, where a sample that was not found has the guess."""
    base = (guess - features).square().sum(1)
    apart = torch.cdist(features, found.double()).square()
    rows, columns = linear_sum_assignment((apart - base[:, None]).numpy())
    got = torch.zeros_like(base)
    got[rows] = 1 - apart[rows, columns] / base[rows]
    return float(got.mean())
