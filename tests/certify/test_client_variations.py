"""Clients that train in ways which nobody declared: the certificate is withheld, or the answer is
right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import unsum
from support.long import long
from unsum.head import collect_features

RATE, B = 0.05, 4


def smoothed_and_weighted(logits: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(
        logits, y, weight=torch.linspace(0.5, 2.0, logits.shape[1]), label_smoothing=0.1
    )


def sent(
    optimizer: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
    loss: Callable[..., Tensor],
    steps: int,
) -> tuple[nn.Module, unsum.Update, Tensor, Tensor]:
    """The model that the last of `steps` rounds began with, the change of its weights, and the
    samples of that round's step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 24))
    x, y = torch.randn(B, 16), torch.randint(0, 24, (B,))
    trains = optimizer(model.parameters(), lr=RATE, **options)
    for number in range(steps):
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        inputs, labels = (x, y) if number == steps - 1 else (torch.randn(B, 16), y.flip(0))
        trains.zero_grad()
        loss(model(inputs), labels).backward()
        trains.step()
    delta = {name: parameter.detach() - start[name] for name, parameter in model.named_parameters()}
    model.load_state_dict(start)
    return model, unsum.Update.from_delta(delta, learning_rate=RATE), x, y


CLIENTS = {
    "momentum, second step": (torch.optim.SGD, {"momentum": 0.9}, functional.cross_entropy, 2),
    "Adam, first step": (torch.optim.Adam, {}, functional.cross_entropy, 1),
    "AdamW, first step": (torch.optim.AdamW, {}, functional.cross_entropy, 1),
    "Adam, second step": (torch.optim.Adam, {}, functional.cross_entropy, 2),
    "weights and smoothing": (torch.optim.SGD, {}, smoothed_and_weighted, 1),
}


@pytest.mark.parametrize("name", [*list(CLIENTS)[1:], *long(next(iter(CLIENTS)))])
def test_a_wrong_model_of_the_client_is_never_certified(name: str) -> None:
    model, update, x, _ = sent(*CLIENTS[name])
    leak = unsum.separate(model, update, "exact", batch_size=B)
    worst = (
        unsum.score(leak, features=collect_features(model, x))["worst_feature_error"]
        if leak.batch_size
        else 1.0
    )
    assert not leak.exact or worst < 1e-2
    assert worst > 1e-2 or not leak.exact or leak.predicted_error > worst / 10


@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.01}, {"momentum": 0.9, "nesterov": True}]
)
def test_what_leaves_the_gradient_there_comes_back(options: dict[str, Any]) -> None:
    model, update, x, y = sent(torch.optim.SGD, options, functional.cross_entropy, 1)
    leak = unsum.separate(model, update, "exact", batch_size=B)
    scores = unsum.score(leak, features=collect_features(model, x), targets=y)
    assert scores["worst_feature_error"] < 1e-3
    assert scores["label_correct"] == 1
    assert leak.exact
