"""Labels after many local steps: are the counts right, and do their intervals hold the true count
as often as they say?

python -m unsum_bench.scripts.local_epochs --photos cifar.npz --draws 40 --processes 16 \\
    --json rows.json
python -m unsum_bench.scripts.local_epochs --read rows.json

A client shuffles its photos anew in every epoch and trains by SGD; the server knows rate, momentum,
epochs, the size of a batch and the number of photos, as federated platforms disclose them. Every
draw has a network, photos and shares of its own. `--attack SECONDS` asks the whole attack besides,
once for each setting: what it says after that time.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import unsum
from unsum.errors import UnsumError
from unsum.local_training import LocalTraining
from unsum.separate.local_steps.label_counts import count_labels
from unsum_bench.scripts.pooled import rows_within

COLUMNS_OF_TABLE = 30


def lenet(classes: int) -> nn.Sequential:
    """As in Flower's quickstart."""
    return nn.Sequential(
        *(
            nn.Conv2d(3, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        ),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
    )


def cnn(classes: int) -> nn.Sequential:
    return nn.Sequential(
        *(
            nn.Conv2d(3, 32, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ),
        *(nn.Flatten(), nn.Linear(4096, 200), nn.ReLU(), nn.Linear(200, classes)),
    )


def normed(classes: int) -> nn.Sequential:
    return nn.Sequential(
        *(
            nn.Conv2d(3, 24, 3, 2, 1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, 2, 1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
        ),
        *(nn.Conv2d(48, 96, 3, 2, 1), nn.BatchNorm2d(96), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, classes)),
    )


def table(classes: int) -> nn.Sequential:
    return nn.Sequential(
        *(
            nn.Linear(COLUMNS_OF_TABLE, 100),
            nn.ReLU(),
            nn.Linear(100, 50),
            nn.ReLU(),
            nn.Linear(50, classes),
        )
    )


@dataclass(frozen=True)
class Epochs:
    """One kind of client; `alpha` is Dirichlet's, of the classes' shares (0: all alike)."""

    name: str
    network: Callable[[int], nn.Sequential]
    classes: int
    samples: int
    batch: int
    epochs: int
    rate: float
    momentum: float = 0.0
    alpha: float = 0.0
    trained: int = 0  # steps on other samples first, by a server


SETTINGS = (
    Epochs("Dimitrov: 10 × 10 × 5, CNN", cnn, 100, 50, 5, 10, 0.004),
    Epochs("the same, uneven classes", cnn, 62, 50, 5, 10, 0.004, alpha=0.3),
    Epochs("the same, trained", cnn, 100, 50, 5, 10, 0.004, trained=200),
    Epochs("Flower's quickstart, LeNet", lenet, 10, 2000, 32, 1, 0.1, 0.9),
    Epochs("the same at 0.01", lenet, 10, 2000, 32, 1, 0.01, 0.9),
    Epochs("the same at 0.01, uneven classes", lenet, 10, 2000, 32, 1, 0.01, 0.9, alpha=0.5),
    Epochs(
        "the same at 0.01, uneven, trained",
        lenet,
        10,
        2000,
        32,
        1,
        0.01,
        0.9,
        alpha=0.5,
        trained=200,
    ),
    Epochs("LeNet, 5 epochs, uneven", lenet, 10, 500, 32, 5, 0.01, 0.9, alpha=0.5),
    Epochs("BatchNorm, pooled, 2 epochs, uneven", normed, 20, 400, 16, 2, 0.02, alpha=0.3),
    Epochs(
        "BatchNorm, pooled, trained, uneven",
        normed,
        20,
        400,
        16,
        2,
        0.02,
        0.9,
        alpha=0.5,
        trained=200,
    ),
    Epochs("table, 3 classes, 4 epochs", table, 3, 200, 20, 4, 0.02, alpha=1.0),
    Epochs("table, 2 classes, 10 epochs", table, 2, 500, 50, 10, 0.05, 0.9, alpha=1.0),
)


@cache
def photos(path: str) -> tuple[Tensor, Tensor]:
    held = np.load(path)
    return torch.tensor(held["images"]).permute(0, 3, 1, 2).float() / 255, torch.tensor(
        held["labels"]
    ).long()


def draw(
    setting: Epochs, path: str, count: int, alpha: float, clouds: Tensor
) -> tuple[Tensor, Tensor]:
    """Samples with labels: photos of CIFAR-100, whose classes are taken together, or clouds of
    points for a table."""
    C = setting.classes
    shares = (
        torch.distributions.Dirichlet(torch.full((C,), alpha)).sample()
        if alpha
        else torch.full((C,), 1 / C)
    )
    labels = torch.multinomial(shares, count, replacement=True)
    if setting.network is table:
        return 0.5 * clouds[labels] + torch.randn(count, COLUMNS_OF_TABLE), labels
    images, fine = photos(path)
    scores = torch.rand(len(fine))
    order = scores.argsort()
    places = {c: order[fine[order] % C == c] for c in labels.unique().tolist()}
    chosen = torch.empty_like(labels)
    for c, some in places.items():
        wanted = (labels == c).nonzero()[:, 0]
        chosen[wanted] = some[torch.arange(len(wanted)) % len(some)]
    return images[chosen], labels


def train(
    model: nn.Module, x: Tensor, y: Tensor, setting: Epochs, epochs: int, most: int = 1 << 30
) -> int:
    """SGD in place, in an order shuffled anew in every epoch; the number of steps."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.rate, momentum=setting.momentum)
    steps = 0
    for _ in range(epochs):
        for some in torch.randperm(len(x)).split(setting.batch):
            if steps == most:
                return steps
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
            steps += 1
    return steps


def play(setting: Epochs, path: str, seed: int) -> tuple[nn.Module, unsum.Update, Tensor]:
    torch.manual_seed(7000 + seed)
    model, clouds = setting.network(setting.classes), torch.randn(setting.classes, COLUMNS_OF_TABLE)
    if setting.trained:
        x, y = draw(setting, path, 2000, 0.0, clouds)
        train(model, x, y, setting, 1 + setting.trained * setting.batch // 2000, setting.trained)
    x, y = draw(setting, path, setting.samples, setting.alpha, clouds)
    local = copy.deepcopy(model)
    steps = train(local, x, y, setting, setting.epochs)
    after = dict(local.named_parameters())
    delta = {name: (after[name] - p).detach() for name, p in model.named_parameters()}
    known = LocalTraining(
        setting.rate, steps, setting.batch, momentum=setting.momentum, epochs=setting.epochs
    )
    update = unsum.Update.from_delta(delta, setting.rate, num_examples=setting.samples)
    start = {name: p.detach() for name, p in model.named_parameters()}
    return (
        model.train(),
        update.of_training(known, start),
        torch.bincount(y, minlength=setting.classes),
    )


@dataclass(frozen=True)
class Row:
    setting: str
    seed: int
    steps: int
    error: float  # samples by which the counts are off, on average over the classes
    alike: float  # the same, had one taken all classes to be alike
    right: float  # share of samples whose label is in the counts
    width: float  # half an interval, in samples
    covered: float  # share of the classes whose interval holds the true count
    sure: bool  # whether every sure bound holds
    seconds: float
    refused: str = ""


def attempt(task: tuple[int, int, str]) -> Row:
    number, seed, path = task
    torch.set_num_threads(1)
    setting = SETTINGS[number]
    model, update, true = play(setting, path, seed)
    start, true = time.perf_counter(), true.double()
    assert update.training is not None
    steps = update.training.steps or 1
    try:
        found = count_labels(model, update)
    except UnsumError as reason:
        return Row(setting.name, seed, steps, *(float("nan"),) * 5, True, 0.0, str(reason))
    seconds, off = time.perf_counter() - start, (found.counts - true).abs()
    inside = (true >= found.low) & (true <= found.high)
    return Row(
        *(setting.name, seed, steps, float(off.mean()), float((true - true.mean()).abs().mean())),
        *(1 - float(off.sum()) / 2 / setting.samples, float((found.high - found.low).mean()) / 2),
        *(float(inside.double().mean()), bool((true >= found.sure).all()), seconds),
    )


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def shown(rows: list[Row]) -> str:
    lines = [
        "| client | steps | samples, classes | counts off by | all alike: off by | labels right | "
        "interval ± | holds the count | sure bounds | seconds |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for setting in SETTINGS:
        every = [row for row in rows if row.setting == setting.name]
        here = [row for row in every if not row.refused]
        if not here:
            continue
        figures = {
            name: mean([getattr(row, name) for row in here])
            for name in ("error", "alike", "right", "width")
        }
        covered, late = mean([row.covered for row in here]), mean([row.seconds for row in here])
        lines.append(
            f"| {setting.name} | {here[0].steps} | {setting.samples}, {setting.classes} | "
            f"{figures['error']:.2g} | {figures['alike']:.2g} | {figures['right']:.0%} | "
            f"{figures['width']:.2g} | {covered:.0%} of {len(here)} draws | "
            f"{sum(row.sure for row in here)} of {len(here)} | {late:.2f} |"
        )
    refused = sum(bool(row.refused) for row in rows)
    return "\n".join(
        [
            *lines,
            "",
            (
                f"{len(rows)} clients, {refused} refused. Off by and ± are samples of a class, on "
                "average."
            ),
        ]
    )


def whole_attack(path: str, seconds: float) -> None:
    for setting in SETTINGS:
        model, update, _ = play(setting, path, 0)
        start = time.perf_counter()
        leak = unsum.attack(model, update, time_limit=seconds)
        said = next((note for note in leak.notes if "told apart" in note), leak.notes[0])
        print(
            f"{setting.name}: {time.perf_counter() - start:.1f} s, exact {leak.exact}. {said}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", help="CIFAR-100 as an .npz of images and labels")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--minutes",
        type=float,
        default=1e6,
        help="that all may take; what is done then is the table",
    )
    parser.add_argument("--only", default="", help="settings whose names hold this")
    parser.add_argument("--json", type=Path, help="every row as it comes")
    parser.add_argument("--read", type=Path, help="print the table of such a file instead")
    parser.add_argument(
        "--attack", type=float, metavar="SECONDS", help="ask the whole attack, with this time limit"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.read:
        print(shown([Row(**row) for row in json.loads(given.read.read_text())]))
        return
    if given.attack:
        whole_attack(given.photos, given.attack)
        return
    chosen = [number for number, setting in enumerate(SETTINGS) if given.only in setting.name]
    tasks = [(number, seed, given.photos) for seed in range(given.draws) for number in chosen]
    rows = rows_within(attempt, tasks, given.processes, given.minutes, given.json)
    print(shown(rows))


if __name__ == "__main__":
    main()
