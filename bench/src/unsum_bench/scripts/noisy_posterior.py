"""Pictures read out of a noisy gradient by the attack `posterior`, beside what nobody can exceed.

    python -m unsum_bench.scripts.noise posterior  # a minute or two on one core

The client is LeNet at 32², trained a little, with one embedded photo and its label known. Leakage
is 1 − ‖x̂ − x‖²/‖m − x‖² with m the mean color of photos, on average over the photos; it is not cut
off at zero. The ceiling is the mean over pairs of worlds (`unsum ceiling`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import unsum
from unsum.ceiling.bound import Distances
from unsum.ceiling.client import SimulatedClient
from unsum.ceiling.prove import Simulation
from unsum.defend.added import AddedNoise
from unsum.match import match
from unsum.models.strides import PHOTOS_MEAN
from unsum_bench.scripts.ceilings import a_little, lenet, photos, tiles

LEVELS = (1e-3, 1e-2, 3e-2, 0.1)
NETWORKS: dict[str, Callable[[], nn.Module]] = {"ReLU": nn.ReLU, "softplus": nn.Softplus}
_PAIRS = 64


def ceilings(case: Simulation, levels: list[float]) -> list[float]:
    client = SimulatedClient(case.model, case.train, None, case.loss)
    distances = Distances(client, case.world, [case.secrets()[0]])
    while distances.count(0, "own") < _PAIRS:
        distances.cycle(0)
    return [distances.means(0, AddedNoise("gaussian", sigma)) for sigma in levels]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--levels", type=float, nargs="+", default=LEVELS)
    asked = parser.parse_args(arguments)
    images, targets = photos(None, asked.photos)
    color = torch.tensor(PHOTOS_MEAN)[:, None, None]
    print("| LeNet of | σ | found | of each | ceiling, mean | CPU seconds |")
    print("|---|--:|--:|---|--:|--:|")
    for name, activation in NETWORKS.items():
        task = tiles()
        model = a_little(lenet(activation), task[0], task[1] % 10).train()
        limits, found = [], []
        for place in range(asked.photos):
            x, label = images[place : place + 1], targets[place : place + 1] % 10
            limits.append(ceilings(Simulation(model, x, label), asked.levels))
            sent, each = unsum.capture(model, x, label), []
            for sigma in asked.levels:
                torch.manual_seed(0)
                start, noisy = time.process_time(), unsum.Noise(sigma)(sent)
                how = {"labels": label, "image_size": 32, "restarts": asked.restarts}
                leak = match(model, noisy, "posterior", **how)
                assert leak.images is not None
                left = float((leak.images - x).square().sum() / (color - x).square().sum())
                each.append((1 - left, time.process_time() - start))
            found.append(each)
        for k, sigma in enumerate(asked.levels):
            shares = [each[k][0] for each in found]
            ceiling = statistics.mean(limit[k] for limit in limits)
            seconds = statistics.mean(each[k][1] for each in found)
            shown = ", ".join(f"{share:.2f}" for share in shares)
            print(
                f"| {name} | {sigma:g} | {statistics.mean(shares):.2f} | {shown} | {ceiling:.2f} | "
                f"{seconds:.0f} |",
                flush=True,
            )
