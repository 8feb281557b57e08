"""Clients as they really train: which undeclared kinds of training does an attack see through, and does it ever vouch for a wrong
answer?

uv run python benchmarks/client_variations.py            # the table of docs/results/client-variations.md

The server has the weights before and after one local step and is told the learning rate and the number of samples. Nothing else
is declared. `information` says whether the change of weights still holds the gradient up to an unknown factor; `error` is the
median over draws of the mean relative error of the features at the last layer; a false claim is a certificate over samples that
are off by more than 1 % or by ten times what it predicts.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import unsum
from unsum.errors import UnsumError
from unsum.head import collect_features

RATE, SAMPLES = 0.05, 6
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def weighted(smoothing: float) -> Loss:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        weights = torch.linspace(0.5, 2.0, logits.shape[1])
        return functional.cross_entropy(logits, y, weight=weights, label_smoothing=smoothing)

    return loss


def smoothed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y, label_smoothing=0.1)


def penalized(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return plain(model, x, y) + 5e-4 * sum(p.square().sum() for p in model.parameters())


def half(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
    return functional.cross_entropy(logits.float(), y)


@dataclass(frozen=True)
class Client:
    """One kind of training: `steps` of which all but the last are of other samples, in rounds that the server saw before."""

    name: str
    information: str
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    options: tuple[tuple[str, Any], ...] = ()
    loss: Loss = plain
    steps: int = 1
    parts: int = 1  # micro-batches whose gradients are accumulated
    average: float = 0.0  # of the exponential moving average that is sent instead of the weights
    clip: float = 0.0
    previous: bool = False  # whether the server uses the update before


CLIENTS = (
    Client("plain SGD", "yes"),
    Client("accumulation, 3 micro-batches", "yes", parts=3),
    Client("weight decay 1e-2", "yes, less λW", options=(("weight_decay", 1e-2),)),
    Client("L2 in the loss, 1e-3 W", "yes, less λW", loss=penalized),
    Client("Nesterov, first step", "yes", options=(("momentum", 0.9), ("nesterov", True))),
    Client("momentum, second step", "mixed with the step before", options=(("momentum", 0.9),), steps=2),
    Client("momentum, second step, round before used", "yes", options=(("momentum", 0.9),), steps=2, previous=True),
    Client("Adam, first step", "signs alone", torch.optim.Adam),
    Client("AdamW, first step", "signs alone, less λW", torch.optim.AdamW),
    Client("Adam, second step", "no", torch.optim.Adam, steps=2),
    Client("bfloat16 autocast", "to three digits", loss=half),
    Client("EMA of the weights, 0.99", "yes, a hundredth", average=0.99),
    Client("gradient clipped to 0.1", "yes, scaled", clip=0.1),
    Client("smoothing 0.1", "yes", loss=smoothed),
    Client("class weights", "yes", loss=weighted(0.0)),
    Client("class weights and smoothing 0.1", "yes", loss=weighted(0.1)),
)


def networks(seed: int) -> Iterator[tuple[str, nn.Module, Tensor, Tensor]]:
    """Name, model, samples and labels of the client."""
    torch.manual_seed(seed)
    head = nn.Sequential(nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 40))
    yield "48-96-40, tanh", head, torch.randn(SAMPLES, 48), torch.randint(0, 40, (SAMPLES,))
    table = nn.Sequential(nn.Linear(30, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3))
    yield "30-100-100-3, ReLU", table, torch.randn(SAMPLES, 30), torch.randint(0, 3, (SAMPLES,))


def rounds(client: Client, model: nn.Module, x: Tensor, y: Tensor) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """The weights that the last round began with, and the change of weights of every round."""
    trained = copy.deepcopy(model)
    optimizer = client.optimizer(trained.parameters(), lr=RATE, **dict(client.options))
    changes = []
    for number in range(client.steps):
        last = number == client.steps - 1
        samples, labels = (x, y) if last else (torch.randn_like(x), y.flip(0))
        before = copy.deepcopy(trained)
        optimizer.zero_grad()
        for part, answers in zip(samples.chunk(client.parts), labels.chunk(client.parts), strict=True):
            (client.loss(trained, part, answers) / client.parts).backward()
        if client.clip:
            nn.utils.clip_grad_norm_(trained.parameters(), client.clip)
        optimizer.step()
        old = dict(before.named_parameters())
        changes.append(
            {name: (1 - client.average) * (p - old[name]).detach() for name, p in trained.named_parameters()}
        )
    return before, changes


def one(client: Client, model: nn.Module, x: Tensor, y: Tensor, seconds: float) -> tuple[float, bool, bool]:
    """The mean error of the features, whether the answer is certified, and whether that is false."""
    start, changes = rounds(client, model, x, y)
    update = unsum.Update.from_delta(changes[-1], learning_rate=RATE)
    if client.previous:
        update = unsum.without_momentum(update, unsum.Update.from_delta(changes[-2], learning_rate=RATE))
    truth = collect_features(start, x)
    try:
        leak = unsum.attack(start, update, batch_size=len(x), time_limit=seconds)
    except UnsumError:
        return float("nan"), False, False
    if not leak.batch_size:
        return 1.0, leak.exact, leak.exact
    scores = unsum.score(leak, features=truth, targets=y)
    worst = scores["worst_feature_error"]
    false = leak.exact and (worst > 1e-2 or worst > 10 * max(leak.predicted_error, 1e-6))
    return scores["feature_error"], leak.exact, false


def main(draws: int, seconds: float, wanted: str) -> None:
    print("| client | information | network | error | certified | false claims |")
    print("|---|---|---|--:|--:|--:|")
    for client in (client for client in CLIENTS if wanted in client.name):
        found: dict[str, list[tuple[float, bool, bool]]] = {}
        for seed in range(draws):
            for name, model, x, y in networks(seed):
                found.setdefault(name, []).append(one(client, model, x, y, seconds))
        for name, rows in found.items():
            errors = [row[0] for row in rows if row[0] == row[0]]
            error = f"{statistics.median(errors):.0e}" if errors else "refused"
            certified, false = (sum(row[i] for row in rows) for i in (1, 2))
            print(
                f"| {client.name} | {client.information} | {name} | {error} | {certified} of {draws} | {false} |",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="that one attack may take")
    parser.add_argument("--only", default="", help="clients whose names hold this")
    given = parser.parse_args()
    torch.set_num_threads(1)
    main(given.draws, given.seconds, given.only)
