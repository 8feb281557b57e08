"""Does every search keep its limit? Gradients that no batch has, and the seconds that each method takes over the limit.

    OMP_NUM_THREADS=1 uv run python benchmarks/time_limits.py --seconds 5

Seconds on the clock, so the machine must do nothing else. A search that ends by itself before the limit says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torchvision.models import resnet18, resnet50

import unsum

SIZES = {"small": (100, 512, 24), "large": (1000, 2048, 48), "crowded": (100, 512, 90)}  # classes, features, directions


def forged(classes: int, width: int, rank: int) -> tuple[nn.Module, unsum.Update]:
    """Balanced over the classes as cross-entropy's gradients are, and of no batch."""
    torch.manual_seed(1)
    U = torch.randn(classes, rank)
    U = U - U.mean(0)
    sent = {"1.weight": U @ torch.randn(rank, width).relu(), "1.bias": U.sum(1)}
    return nn.Sequential(nn.Flatten(), nn.Linear(width, classes)), unsum.Update(sent)


def cases() -> Iterator[tuple[str, nn.Module, unsum.Update, str, dict[str, Any]]]:
    for size, shape in SIZES.items():
        model, update = forged(*shape)
        for method in ("auto", "exact", "adaptive", "uneven"):
            yield f"{method}, {size}", model, update, method, {}
        training = unsum.LocalTraining(learning_rate=0.1, steps=4)
        delta = {name: -0.1 * gradient for name, gradient in update.gradients.items()}
        yield f"local-steps, {size}", model, unsum.Update.from_delta(delta, 0.1, training=training), "auto", {}
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5))
    noise = unsum.Update({name: torch.randn_like(p) for name, p in dense.named_parameters()})
    yield "spans of noise", dense, noise, "spans", {"batch_size": 40}
    for size, B in ((32, 1), (32, 8), (32, 12), (224, 4)):
        network = resnet50() if size == 224 else resnet18(num_classes=10)
        if size == 32:  # maps of the pictures' own size, as these networks have them
            network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
        network.train(B > 1)
        sent = unsum.capture(network, torch.rand(B, 3, size, size), torch.arange(B) % 10, train=B > 1)
        yield f"{type(network).__name__}, {size}², B = {B}", network, sent, "auto", {}
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(1568, 10))
    honest = unsum.capture(network, torch.rand(4, 3, 16, 16), torch.arange(4))
    for method in ("dlg", "ig", "gradinversion"):
        steps = {"options": {"image_size": 16, "steps": 10**9}, "batch_size": 4}
        yield f"{method} without end", network, honest, method, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.func.jacfwd(lambda x: x.softmax(0))(torch.zeros(2))  # what is imported once is no part of a search
    unsum.attack(*forged(20, 64, 2), time_limit=0.5)
    print("| search | seconds | over the limit | |\n|---|--:|--:|---|", flush=True)
    for name, model, update, method, how in cases():
        start = time.perf_counter()
        try:
            leak = unsum.attack(model, update, method, time_limit=options.seconds, **how)
            ended = "cut short" if any("left untried" in note for note in leak.notes) else "ended by itself"
        except unsum.UnsumError as error:
            ended = f"refused: {error}"
        seconds = time.perf_counter() - start
        over = f"{100 * (seconds / options.seconds - 1):.0f} %" if seconds > options.seconds else "–"
        print(f"| {name} | {seconds:.2f} | {over} | {ended} |", flush=True)


if __name__ == "__main__":
    main()
