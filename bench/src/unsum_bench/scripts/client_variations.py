"""Clients as they really train: which undeclared kinds of training does an attack see through, and
does it ever vouch for a wrong answer?

# docs/results/client-variations.md
python -m unsum_bench.scripts.client_variations --draws 5 --processes 16 --json rows.json
python -m unsum_bench.scripts.client_variations --read rows.json  # the table of what was measured

The server has the weights before and after one local step and is told the learning rate and the
number of samples. Nothing else is declared. `gradient there?` says whether the change of weights
still holds the gradient up to an unknown factor; a batch is found where the mean relative error of
its features at the last layer is below a half; `error` is the median over the draws that were
found; a false claim is a certificate over samples that are off by more than 1 % or by ten times
what it predicts.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import unsum
from unsum.client.step import in_mode
from unsum.errors import UnsumError
from unsum.head import collect_features
from unsum_bench.scripts.pooled import rows_within

RATE, SAMPLES = 0.05, 6
FOUND = (
    # mean error of the features below which a batch counts as found: answers that are far off err
    # by 1 and more
    0.5
)
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
    """One kind of training: `steps` of which all but the last are of other samples, in rounds that
    the server saw before."""

    name: str
    information: str
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    options: tuple[tuple[str, Any], ...] = ()
    loss: Loss = plain
    steps: int = 1
    parts: int = 1  # micro-batches whose gradients are accumulated
    average: float = 0.0  # of the exponential moving average that is sent instead of the weights
    clip: float = 0.0
    body_rate: float = 1.0  # of all layers but the last, in parts of the head's
    # of all layers but the last, which do not train: in parts of the head's largest entry
    body_noise: float = 0.0
    previous: bool = False  # whether the server uses the update before


CLIENTS = (
    Client("plain SGD", "yes"),
    Client("accumulation, 3 micro-batches", "yes", parts=3),
    Client("weight decay 1e-2", "yes, less λW", options=(("weight_decay", 1e-2),)),
    Client("L2 in the loss, 1e-3 W", "yes, less λW", loss=penalized),
    Client("Nesterov, first step", "yes", options=(("momentum", 0.9), ("nesterov", True))),
    Client(
        "momentum, second step", "mixed with the step before", options=(("momentum", 0.9),), steps=2
    ),
    Client(
        "momentum, second step, round before used",
        "yes",
        options=(("momentum", 0.9),),
        steps=2,
        previous=True,
    ),
    Client("Adam, first step", "signs, little more", torch.optim.Adam),
    Client("AdamW, first step", "signs, little more, less λW", torch.optim.AdamW),
    Client("Adam, second step", "no: entries over their own size", torch.optim.Adam, steps=2),
    Client("bfloat16 autocast", "to three digits", loss=half),
    Client("EMA of the weights, 0.99", "yes, a hundredth", average=0.99),
    Client("gradient clipped to 0.1", "yes, scaled", clip=0.1),
    Client("body at a tenth of the rate", "yes, layers scaled apart", body_rate=0.1),
    Client("frozen body that sends noise", "of the head alone", body_noise=0.1),
    Client("smoothing 0.1", "yes", loss=smoothed),
    Client("class weights", "yes", loss=weighted(0.0)),
    Client("class weights and smoothing 0.1", "yes", loss=weighted(0.1)),
)


def networks(seed: int) -> Iterator[tuple[str, nn.Module, Tensor, Tensor]]:
    """Name, model, samples and labels of the client."""
    torch.manual_seed(seed)
    head = nn.Sequential(nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 40))
    yield "48-96-40, tanh", head, torch.randn(SAMPLES, 48), torch.randint(0, 40, (SAMPLES,))
    table = nn.Sequential(
        nn.Linear(30, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3)
    )
    yield "30-100-100-3, ReLU", table, torch.randn(SAMPLES, 30), torch.randint(0, 3, (SAMPLES,))
    trained = learned(copy.deepcopy(table))
    yield (
        "30-100-100-3, trained",
        trained,
        torch.randn(SAMPLES, 30),
        torch.randint(0, 3, (SAMPLES,)),
    )
    maps = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(512, 40)),
    )
    yield (
        "convolutions, BatchNorm, 40 classes",
        maps,
        torch.rand(SAMPLES, 3, 16, 16),
        torch.randint(0, 40, (SAMPLES,)),
    )


def learned(model: nn.Module, steps: int = 200) -> nn.Module:
    """The model after training on three clouds of points, which it tells apart then."""
    optimizer, clouds = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(3, 30)
    for _ in range(steps):
        labels = torch.randint(0, 3, (32,))
        optimizer.zero_grad()
        plain(model, 0.3 * clouds[labels] + torch.randn(32, 30), labels).backward()
        optimizer.step()
    return model


def rounds(
    client: Client, model: nn.Module, x: Tensor, y: Tensor
) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """The weights that the last round began with, and the change of weights of every round."""
    trained = copy.deepcopy(model).train()
    last = list(trained.parameters())[-2:]
    body = [p for p in trained.parameters() if all(p is not one for one in last)]
    groups = [{"params": body, "lr": RATE * client.body_rate}, {"params": last}]
    optimizer = client.optimizer(groups, lr=RATE, **dict(client.options))
    changes = []
    for number in range(client.steps):
        final = number == client.steps - 1
        samples, labels = (x, y) if final else (torch.randn_like(x), y.flip(0))
        before = copy.deepcopy(trained)
        optimizer.zero_grad()
        for part, answers in zip(
            samples.chunk(client.parts), labels.chunk(client.parts), strict=True
        ):
            (client.loss(trained, part, answers) / client.parts).backward()
        if client.clip:
            nn.utils.clip_grad_norm_(trained.parameters(), client.clip)
        if client.body_noise:
            size = client.body_noise * float(last[0].grad.abs().max())
            for p in body:
                p.grad = size * torch.randn_like(p)
        optimizer.step()
        old = dict(before.named_parameters())
        changes.append(
            {
                name: (1 - client.average) * (p - old[name]).detach()
                for name, p in trained.named_parameters()
            }
        )
    return before, changes


@dataclass(frozen=True)
class Row:
    """One attack: the mean error of the features (NaN: refused), the certificate, and whether that
    is false."""

    client: str
    network: str
    seed: int
    error: float
    exact: bool
    false: bool
    seconds: float
    note: str = ""


def one(
    client: Client, name: str, model: nn.Module, x: Tensor, y: Tensor, seed: int, seconds: float
) -> Row:
    start, changes = rounds(client, model, x, y)
    update = unsum.Update.from_delta(changes[-1], learning_rate=RATE)
    if client.previous:
        update = unsum.without_momentum(
            update, unsum.Update.from_delta(changes[-2], learning_rate=RATE)
        )
    with in_mode(start, True):  # every micro-batch with BatchNorm's statistics of its own
        truth = torch.cat([collect_features(start, part) for part in x.chunk(client.parts)])
    began = time.perf_counter()
    try:
        leak = unsum.attack(start, update, batch_size=len(x), time_limit=seconds)
    except UnsumError as reason:
        return Row(
            client.name,
            name,
            seed,
            float("nan"),
            False,
            False,
            time.perf_counter() - began,
            str(reason),
        )
    took, note = time.perf_counter() - began, leak.undecided or " ".join(leak.notes[:1])
    if not leak.batch_size:
        return Row(client.name, name, seed, 1.0, leak.exact, leak.exact, took, note)
    scores = unsum.score(leak, features=truth, targets=y)
    worst = scores["worst_feature_error"]
    false = leak.exact and (worst > 1e-2 or worst > 10 * max(leak.predicted_error, 1e-6))
    return Row(client.name, name, seed, scores["feature_error"], leak.exact, false, took, note)


def attempt(task: tuple[int, int, str, float]) -> Row:
    """One client's row of one network, made anew: processes share nothing."""
    number, seed, wanted, seconds = task
    torch.set_num_threads(1)
    name, model, x, y = next(one for one in networks(seed) if one[0] == wanted)
    return one(CLIENTS[number], name, model, x, y, seed, seconds)


def table(rows: list[Row]) -> str:
    lines = [
        "| client | gradient there? | network | found | error | certified | false claims |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for client in CLIENTS:
        for network in dict.fromkeys(row.network for row in rows if row.client == client.name):
            here = [row for row in rows if (row.client, row.network) == (client.name, network)]
            found = [row.error for row in here if row.error < FOUND]
            error = f"{statistics.median(found):.0e}" if found else ""
            counts = (
                f"{number} of {len(here)}"
                for number in (len(found), sum(row.exact for row in here))
            )
            many, sure = counts
            false = sum(row.false for row in here)
            lines.append(
                f"| {client.name} | {client.information} | {network} | {many} | {error} | {sure} | "
                f"{false} |"
            )
    false, claims = sum(row.false for row in rows), sum(row.exact for row in rows)
    return "\n".join(
        [*lines, "", f"{len(rows)} attacks, {claims} certificates, {false} of them false."]
    )


def main(given: argparse.Namespace) -> None:
    if given.read:
        print(table([Row(**row) for row in json.loads(given.read.read_text())]))
        return
    names = [network[0] for network in networks(0)]
    chosen = [number for number, client in enumerate(CLIENTS) if given.only in client.name]
    tasks = [
        (n, seed, name, given.seconds)
        for seed in range(given.draws)
        for n in chosen
        for name in names
    ]
    rows = rows_within(attempt, tasks, given.processes, given.minutes, given.json)
    print(table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="that one attack may take")
    parser.add_argument(
        "--minutes",
        type=float,
        default=1e6,
        help="that all may take; what is done then is the table",
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", default="", help="clients whose names hold this")
    parser.add_argument("--json", type=Path, help="every row as it comes")
    parser.add_argument("--read", type=Path, help="print the table of such a file instead")
    main(parser.parse_args())
