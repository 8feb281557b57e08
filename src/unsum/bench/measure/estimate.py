"""RGLA's table 5: how far the estimated loss l̂ is off, by the accuracy of the model.

The model is a linear head on the photos' features, trained on them and stopped when it reaches an accuracy. l̂ needs nothing but
the bias gradient of a batch, which is the mean of P − Y over it.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from unsum.bench.declare import Cell, Network
from unsum.bench.material import Material
from unsum.bench.measure.round import load
from unsum.bench.networks import build
from unsum.client.step import in_mode
from unsum.errors import UnsumError
from unsum.head import collect_features
from unsum.separate import estimated_loss

_BATCHES = 100  # as many as the paper's table averages over
_STEPS = 5000  # budget of the training that must reach the accuracy
_AT_ONCE = 125  # photos whose features are computed together, as one client's


def estimate(cell: Cell, material: Material) -> dict[str, float]:
    """The errors of l̂ over a hundred random batches of a model of the accuracy that the cell names."""
    goal = float(dict(cell.attack.options)["accuracy"])  # type: ignore[arg-type] # declared so
    features, labels = _features(cell.network, material.data_of(cell), material)
    if len(labels) < cell.batch:
        raise UnsumError(
            f"This cell needs {cell.batch} photos, and the data have {len(labels)}; give more with --data."
        )
    logits, accuracy = probe(features, labels, cell.network.classes, goal)
    errors = loss_errors(logits, labels, cell.batch, cell.seed)
    return {
        "accuracy": accuracy,
        "mean_loss": float(nn.functional.cross_entropy(logits, labels)),
        "loss_error": float(errors.abs().mean()),
        "loss_error_l2": float(errors.norm()),
    }


@lru_cache(maxsize=1)
def _features(network: Network, data: str | None, material: Material) -> tuple[Tensor, Tensor]:
    photos, labels = load(data, network.size)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))  # batches mix the classes
    model = build(network, seed=0, weights=material.weights).to(material.device)
    parts = []
    with in_mode(model, network.train):
        for places in order.split(_AT_ONCE):
            parts.append(collect_features(model, (photos[places].float() / 255).to(material.device)))
    return torch.cat(parts), (labels[order] % network.classes).to(material.device)


def probe(features: Tensor, labels: Tensor, classes: int, goal: float) -> tuple[Tensor, float]:
    """(N, C) logits of a head on all photos, and its accuracy, when training first reaches the goal."""
    torch.manual_seed(0)
    head = nn.Linear(features.shape[1], classes).to(features.device)
    optimizer = torch.optim.Adam(head.parameters(), 3e-3 / features.shape[1] ** 0.5)
    for _ in range(_STEPS):
        logits = head(features)
        accuracy = float((logits.argmax(1) == labels).float().mean())
        if accuracy >= goal:
            return logits.detach(), accuracy
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    raise UnsumError(f"A head on these photos stays below an accuracy of {goal:.0%}; give others with --data.")


def loss_errors(logits: Tensor, labels: Tensor, B: int, seed: int = 0) -> Tensor:
    """(100,) l̂ − l of random batches of B."""
    generator = torch.Generator().manual_seed(seed)
    errors = []
    for _ in range(_BATCHES):
        chosen = torch.randperm(len(labels), generator=generator)[: min(B, len(labels))].to(labels.device)
        Z, y = logits[chosen].double(), labels[chosen]
        grad_b = (Z.softmax(1) - nn.functional.one_hot(y, Z.shape[1])).mean(0)
        errors.append(estimated_loss(grad_b, y) - nn.functional.cross_entropy(Z, y))
    return torch.stack(errors)
