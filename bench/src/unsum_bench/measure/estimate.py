"""RGLA's table 5: how far the estimated loss l̂ is off, by the accuracy of the network.

The network is trained from its random weights on the photos; its logits for all of them are kept
when it first has an accuracy. l̂ needs nothing but the bias gradient of a batch, which is the mean
of P − Y over it.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from unsum.client.step import in_mode
from unsum.errors import UnsumError
from unsum.separate import estimated_loss
from unsum_bench.declare import Cell, Network
from unsum_bench.material import Material
from unsum_bench.measure.round import load
from unsum_bench.networks import build
from unsum_bench.published import ACCURACIES

_BATCHES = 100  # as many as the paper's table averages over
_STEPS = 4000  # budget of the training that must reach the last accuracy
_RATE, _AT_ONCE = 1e-3, 64  # of Adam
_LOOK_EVERY = 10  # steps between two looks at the accuracy


def estimate(cell: Cell, material: Material) -> dict[str, float]:
    """The errors of l̂ over a hundred random batches of a network of the accuracy that the cell
    names."""
    goal = float(dict(cell.attack.options)["accuracy"])  # type: ignore[arg-type] # declared so
    reached, labels = trained_to(cell.network, material.data_of(cell), material.device)
    if len(labels) < cell.batch:
        raise UnsumError(
            f"This cell needs {cell.batch} photos, and the data have {len(labels)}; give more with "
            "--data."
        )
    if goal not in reached:
        raise UnsumError(
            f"A network trained on these photos stays below an accuracy of {goal:.0%}; give others."
        )
    logits = reached[goal]
    errors = loss_errors(logits, labels, cell.batch, cell.seed)
    return {
        "accuracy": float((logits.argmax(1) == labels).float().mean()),
        "mean_loss": float(nn.functional.cross_entropy(logits, labels)),
        "loss_error": float(errors.abs().mean()),
        "loss_error_squared": float(errors.square().mean()),
        "loss_error_l2": float(errors.norm()),
    }


@lru_cache(maxsize=1)
def trained_to(
    network: Network, data: str | None, device: str
) -> tuple[dict[float, Tensor], Tensor]:
    """For every accuracy of the table the (N, C) logits of all photos when training first reaches
    it, and their labels."""
    photos, labels = load(data, network.size)
    photos, labels = (photos.float() / 255).to(device), (labels % network.classes).to(device)
    model = build(network, seed=0, weights=None).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), _RATE)
    generator = torch.Generator().manual_seed(0)
    reached: dict[float, Tensor] = {}
    batches: list[Tensor] = []
    for step in range(_STEPS):
        if step % _LOOK_EVERY == 0:
            with in_mode(model, False), torch.no_grad():
                logits = torch.cat([model(part) for part in photos.split(500)])
            accuracy = float((logits.argmax(1) == labels).float().mean())
            reached |= {
                goal: logits for goal in ACCURACIES if goal <= accuracy and goal not in reached
            }
            if len(reached) == len(ACCURACIES):
                break
        batches = batches or list(
            torch.randperm(len(labels), generator=generator).to(device).split(_AT_ONCE)
        )
        chosen = batches.pop()
        with torch.enable_grad():
            loss = nn.functional.cross_entropy(model(photos[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return reached, labels


def loss_errors(logits: Tensor, labels: Tensor, B: int, seed: int = 0) -> Tensor:
    """(100,) l̂ − l of random batches of B."""
    generator = torch.Generator().manual_seed(seed)
    errors = []
    for _ in range(_BATCHES):
        chosen = torch.randperm(len(labels), generator=generator)[: min(B, len(labels))].to(
            labels.device
        )
        Z, y = logits[chosen].double(), labels[chosen]
        grad_b = (Z.softmax(1) - nn.functional.one_hot(y, Z.shape[1])).mean(0)
        errors.append(estimated_loss(grad_b, y) - nn.functional.cross_entropy(Z, y))
    return torch.stack(errors)
