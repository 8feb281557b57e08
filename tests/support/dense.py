"""Dense networks, batches for them, and answers held against the truth."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

import unsum


def network(
    *sizes: int, activation: type[nn.Module] = nn.ReLU, bias: bool = True, seed: int = 0
) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for n, m in itertools.pairwise(sizes):
        layers += [nn.Linear(n, m, bias=bias), activation()]
    return nn.Sequential(*layers[:-1])


def batch(B: int, n: int, C: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, n, generator=generator), torch.randint(C, (B,), generator=generator)


def partners(leak: unsum.Leak, x: Tensor) -> tuple[Tensor, Tensor]:
    """For every true sample the closest one that was found, and how far it is off, relative."""
    found = next(iter(leak.inner.values())).double()
    apart = torch.cdist(x.flatten(1).double(), found) / x.flatten(1).double().norm(
        dim=1, keepdim=True
    )
    errors, which = apart.min(1)
    return which, errors
