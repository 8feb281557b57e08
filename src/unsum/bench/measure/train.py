"""A network trained for a few epochs on the data, for tables on trained ones."""

from __future__ import annotations

import copy
from functools import lru_cache

import torch
from torch import nn

from unsum.bench.declare import Network
from unsum.bench.measure.photos import load
from unsum.bench.networks import build

_RATE, _BATCH = 3e-3, 32


def trained(network: Network, data: str | None) -> nn.Module:
    """A copy of the network after its epochs of Adam, in eval mode."""
    return copy.deepcopy(_train(network, data))


@lru_cache(maxsize=2)
def _train(network: Network, data: str | None) -> nn.Module:
    photos = load(data, network.size)
    model = build(network, seed=0, weights=None).train()
    labels = photos.labels % network.classes
    optimizer = torch.optim.Adam(model.parameters(), _RATE)
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad():
        for _ in range(network.epochs):
            for batch in torch.randperm(len(labels), generator=generator).split(_BATCH):
                loss = nn.functional.cross_entropy(model(photos.images[batch].float() / 255), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model.eval()
