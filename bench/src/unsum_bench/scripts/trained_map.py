"""RGLA's Table 5 setting as a map: which samples come back at which accuracy and batch size, by
exact, RGLA and FGLA.

    python -m unsum_bench.scripts.trained_map train --images cifar100-test-5k.npz --device cuda \\
        --out cases
    python -m unsum_bench.scripts.trained_map imagenet --weights mobilenet_v2-b0353104.pth \\
        --photos imagenet-samples-224.tar \\
        --out cases
    python -m unsum_bench.scripts.trained_map attack --cases cases --methods exact --processes 4 \\
        --out exact.jsonl
    python -m unsum_bench.scripts.trained_map attack --cases cases --methods rgla released fgla \\
        --device cuda --out rgla.jsonl
    python -m unsum_bench.scripts.trained_map show exact.jsonl rgla.jsonl

`train` stops a ResNet-18 on its way to 90 % and writes, per accuracy, its head and what batches of
its own photos leave in front of it, in train and eval mode; `imagenet` writes the same of
MobileNetV2 as torchvision trained it. `attack` goes through all cells once, then again, and adds a
line per batch; a second call goes on where the first was stopped. Labels are granted to all but
`exact`. "released" is RGLA as in its authors' code, which does not differentiate D.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum.client.capture import in_mode
from unsum.data import read_photos
from unsum.head import collect_features, find_head
from unsum.running.deadline import time_limit
from unsum.score import score_samples
from unsum_bench.measure.estimate import loss_errors
from unsum_bench.published import LOSS_ERRORS
from unsum_bench.scripts.trained_networks import (
    REACH,
    RECOVERED,
    accuracy_on,
    cifar_network,
    mobilenet_and_photos,
    train_until,
)

GOALS = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9)
SIZES = (2, 8, 16, 32, 64)
MODES = ("train", "eval")
METHODS = ("exact", "rgla", "released", "fgla")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("--images", type=Path, required=True)
    training.add_argument("--device", default="cpu")
    training.add_argument("--out", type=Path, required=True, help="a folder; one file per accuracy")
    training.add_argument("--goals", type=float, nargs="+", default=GOALS)
    training.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    training.add_argument("--batches", type=int, default=8, help="per size and mode")
    training.add_argument("--photos", type=int, help="train on so many only")
    training.add_argument(
        "--network", choices=["resnet18", "plain"], default="resnet18", help="plain: for a CPU"
    )
    training.add_argument(
        "--steps-between", type=int, default=20, help="how often the accuracy is measured"
    )
    training.add_argument(
        "--mixed", action="store_true", help="train in bfloat16: twice as fast on a CPU"
    )
    training.set_defaults(run=train)
    trained = commands.add_parser("imagenet")
    trained.add_argument("--weights", type=Path, required=True)
    trained.add_argument("--photos", type=Path, required=True)
    trained.add_argument("--device", default="cpu")
    trained.add_argument("--out", type=Path, required=True)
    trained.add_argument("--sizes", type=int, nargs="+", default=(2, 8, 16, 32, 48, 64, 128, 256))
    trained.add_argument("--batches", type=int, default=4)
    trained.set_defaults(run=imagenet)
    attacking = commands.add_parser("attack")
    attacking.add_argument(
        "--cases", type=Path, required=True, help="a folder that `train` or `imagenet` wrote"
    )
    attacking.add_argument("--out", type=Path, required=True, help="JSON lines, added to")
    attacking.add_argument("--methods", nargs="+", choices=METHODS, default=["exact"])
    attacking.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    attacking.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    attacking.add_argument("--batches", type=int, default=8)
    attacking.add_argument("--steps", type=int, default=20_000, help="of RGLA's Adam")
    attacking.add_argument("--device", default="cpu")
    attacking.add_argument("--processes", type=int, default=1)
    attacking.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop then, whatever is left"
    )
    attacking.set_defaults(run=attack)
    showing = commands.add_parser("show")
    showing.add_argument("results", type=Path, nargs="+")
    showing.add_argument("--cases", type=Path, help="also print RGLA's own Table 5 for these")
    showing.set_defaults(run=show)
    options = parser.parse_args()
    torch.manual_seed(0)
    options.run(options)


# ---- cases ---------------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> None:
    photos = read_photos(options.images, size=32)
    images, labels = photos.images[: options.photos].float() / 255, photos.labels[: options.photos]
    images, labels = images.to(options.device), labels.to(options.device)
    model = (cifar_network() if options.network == "resnet18" else plain_network()).to(
        options.device
    )
    how = {"steps_between": options.steps_between, "mixed": options.mixed}
    for accuracy in train_until(model, images, labels, tuple(options.goals), **how):
        goal = max(goal for goal in options.goals if goal <= accuracy)
        write_cases(model, images, labels, f"accuracy-{100 * goal:02.0f}", accuracy, options)


def plain_network() -> nn.Module:
    """Five convolutions with BatchNorm, pooled to as many features as ResNet-18 has: trains on a
    CPU."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in (
        (3, 32, 2),
        (32, 64, 1),
        (64, 128, 2),
        (128, 256, 2),
        (256, 512, 1),
    ):
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def imagenet(options: argparse.Namespace) -> None:
    model, images, labels = mobilenet_and_photos(options.weights, options.photos)
    model, images, labels = (
        model.to(options.device),
        images.to(options.device),
        labels.to(options.device),
    )
    write_cases(model, images, labels, "mobilenet", accuracy_on(model, images, labels), options)


def write_cases(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    name: str,
    accuracy: float,
    options: argparse.Namespace,
) -> None:
    cases = {
        "accuracy": accuracy,
        "head": {name: value.cpu() for name, value in find_head(model)[1].state_dict().items()},
        "logits": all_logits(model, images),
        "labels": labels.cpu(),
        "batches": {
            (mode, size): list(
                batches(model, images, labels, size, mode == "train", options.batches)
            )
            for mode in MODES
            for size in options.sizes
        },
    }
    options.out.mkdir(parents=True, exist_ok=True)
    part = options.out / f"{name}.part"
    torch.save(cases, part)
    part.rename(part.with_suffix(".pt"))  # whoever waits for it sees all of it or nothing
    print(f"{name}: {accuracy:.1%}", flush=True)


@torch.no_grad()
def all_logits(model: nn.Module, images: Tensor) -> Tensor:
    with in_mode(model, False):
        return torch.cat([model(part).cpu() for part in images.split(100)])


def batches(
    model: nn.Module, images: Tensor, labels: Tensor, size: int, train: bool, count: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Features in front of the head and labels, of random batches; equal labels happen."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(size))
    for number in range(count):
        part = order.roll(-number * size)[:size].to(images.device)
        with in_mode(model, train):
            yield collect_features(model, images[part]).cpu(), labels[part].cpu()


# ---- attacks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One batch under one attack."""

    path: Path
    mode: str
    size: int
    batch: int
    method: str
    steps: int
    device: str

    @property
    def key(self) -> tuple[object, ...]:
        return self.path.stem, self.mode, self.size, self.batch, self.method


def attack(options: argparse.Namespace) -> None:
    done = (
        {tuple(row["key"]) for row in read_rows([options.out])} if options.out.exists() else set()
    )
    jobs = [
        Job(path, mode, size, batch, method, options.steps, options.device)
        for batch in range(options.batches)  # breadth first: every cell once, then every cell again
        for size in options.sizes
        for path in sorted(options.cases.glob("*.pt"))
        for mode in options.modes
        for method in options.methods
    ]
    jobs = [job for job in jobs if job.key not in done]
    end = time.monotonic() + 60 * options.minutes
    # A new process has one thread and its own device; a forked one would share what it must not.
    os.environ["OMP_NUM_THREADS"] = "1"
    with (
        options.out.open("a") as out,
        multiprocessing.get_context("spawn").Pool(options.processes) as pool,
    ):
        answers = pool.imap_unordered(attempt, jobs)
        for _ in jobs:
            try:
                row = answers.next(timeout=min(max(end - time.monotonic(), 0.01), 1e6))
            except multiprocessing.TimeoutError:
                print("the time is over", file=sys.stderr, flush=True)
                return
            out.write(json.dumps(row) + "\n")
            out.flush()


def attempt(job: Job) -> dict[str, Any]:
    torch.set_num_threads(1)
    cases = torch.load(job.path, weights_only=True)
    features, labels = cases["batches"][job.mode, job.size][job.batch]
    classes, width = cases["head"]["weight"].shape
    head = nn.Linear(width, classes)
    head.load_state_dict(cases["head"])
    found: dict[str, Any] = {"key": job.key, "accuracy": cases["accuracy"]}
    try:
        return found | measure(head, features, labels, job)
    except Exception as failure:  # one batch must not end the night
        return found | {"failure": f"{type(failure).__name__}: {failure}"}


def measure(head: nn.Linear, features: Tensor, labels: Tensor, job: Job) -> dict[str, Any]:
    """Attack the head's gradient, a client's own float32 one, and compare with the truth."""
    update = unsum.capture(head, features, labels)
    start = time.perf_counter()
    if job.method == "exact":
        leak = unsum.separate(head, update)
    else:
        own = (
            {}
            if job.method == "fgla"
            else {"steps": job.steps, "constant_D": job.method == "released"}
        )
        method = "fgla" if job.method == "fgla" else "rgla"
        leak = unsum.separate(
            copy.deepcopy(head), update, method, labels=labels, device=job.device, **own
        )
    seconds = time.perf_counter() - start
    rows = score_samples(leak, targets=labels, features=features)
    with torch.no_grad():
        P = head.double()(features.double()).softmax(1)
    return {
        "errors": [row.feature_error for row in rows],
        "left": (1 - P[torch.arange(len(labels)), labels]).tolist(),
        "labels": sum(row.label_correct for row in rows),
        "samples": leak.batch_size,
        "exact": leak.exact,
        "predicted": leak.predicted_error,
        "seconds": seconds,
        "notes": leak.notes[:2],
    }


# ---- tables --------------------------------------------------------------------------------------


def read_rows(paths: list[Path]) -> list[dict[str, Any]]:
    """All whole lines: a process that was stopped may have left half a one."""
    lines = [line for path in paths for line in path.read_text().splitlines() if line.endswith("}")]
    return [json.loads(line) for line in lines]


def show(options: argparse.Namespace) -> None:
    rows = read_rows(options.results)
    for failed in (row for row in rows if "failure" in row):
        print(failed["key"], failed["failure"], file=sys.stderr)
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if "failure" not in row:
            name, mode, size, _, method = row["key"]
            cells[method, mode, name, size].append(row)
    reached = {row["key"][0]: row["accuracy"] for row in rows}
    sizes = sorted({key[3] for key in cells})
    for method in METHODS:
        for mode in MODES:
            if any(key[:2] == (method, mode) for key in cells):
                print(f"\n{method}, BatchNorm in {mode} mode\n")
                print(
                    "| accuracy | "
                    + " | ".join(f"B = {size}" for size in sizes)
                    + " |\n|---|"
                    + "---|" * len(sizes)
                )
                for name in sorted(reached):
                    found = [
                        cell(method, cells.get((method, mode, name, size), [])) for size in sizes
                    ]
                    print(f"| {reached[name]:.0%} | " + " | ".join(found) + " |")
    if options.cases:
        show_loss_errors(options.cases)


def cell(method: str, rows: list[dict[str, Any]]) -> str:
    """Share of the samples within reach that came back; then certificates for exact, the median
    error for the others."""
    pairs = [pair for row in rows for pair in zip(row["errors"], row["left"], strict=True)]
    within = [error for error, left in pairs if left >= REACH]
    if not within:
        return "–"
    text = f"{100 * sum(error < RECOVERED for error in within) / len(within):.1f} %"
    if method != "exact":
        return f"{text}, {statistics.median(within):.1e}"
    false = sum(
        row["exact"]
        and any(e > 1e-2 for e, p in zip(row["errors"], row["left"], strict=True) if p >= REACH)
        for row in rows
    )
    seconds = statistics.median(row["seconds"] for row in rows)
    text += f" of {len(within)}, {sum(row['exact'] for row in rows)}/{len(rows)}, {seconds:.1f} s"
    return text + (f", **{false} false**" if false else "")


def show_loss_errors(folder: Path) -> None:
    """RGLA's Table 5: the error of the loss that it estimates, over 100 batches."""
    print(
        "\n| accuracy | mean loss |"
        + "".join(f" B = {B}: mean abs. | L2 | published |" for B in LOSS_ERRORS)
    )
    print("|---|---|" + "---|---|---|" * len(LOSS_ERRORS))
    for path in sorted(folder.glob("accuracy-*.pt")):
        cases = torch.load(path, weights_only=True)
        order = torch.randperm(len(cases["labels"]), generator=torch.Generator().manual_seed(0))
        logits, labels = cases["logits"][order], cases["labels"][order]
        text = (
            f"| {cases['accuracy']:.1%} | {float(nn.functional.cross_entropy(logits, labels)):.2f} "
            "|"
        )
        goal = int(path.stem.removeprefix("accuracy-")) / 100
        for B, figures in LOSS_ERRORS.items():
            errors = loss_errors(logits, labels, B)
            published = figures[GOALS.index(goal)] if goal in GOALS else "–"
            text += (
                f" {float(errors.abs().mean()):.3f} | {float(errors.norm()):.2f} | {published} |"
            )
        print(text)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
