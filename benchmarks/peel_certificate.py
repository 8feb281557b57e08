"""Is the certificate of peeled inputs honest? Random small networks, every activation, every kind of labels.

uv run python benchmarks/peel_certificate.py --networks 1000
"""

from __future__ import annotations

import argparse
import collections
import random

import torch
from torch import nn

import unsum
from cases import soft_targets

ACTIVATIONS = {
    "ReLU": nn.ReLU,
    "LeakyReLU": lambda: nn.LeakyReLU(0.2),
    "ELU": nn.ELU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
    "Sigmoid": nn.Sigmoid,
}
KINDS = ("distinct", "random", "same", "smooth", "mixup")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=5000)
    options = parser.parse_args()
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for seed in range(options.seed, options.seed + options.networks):
        activation, verdict = run(seed)
        counts[activation][verdict] += 1
    columns = (
        "all certified, all right",
        "not all certified",
        "certified but wrong",
        "off by more than predicted × 10",
    )
    print("| activation | networks | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 2) + "|")
    for activation in ACTIVATIONS:
        row = counts[activation]
        print(f"| {activation} | {sum(row.values())} | " + " | ".join(str(row[column]) for column in columns) + " |")


def run(seed: int) -> tuple[str, str]:
    """One to three hidden layers of 20 to 80 units, one to six samples; wrong means an error above 0.1 % or a wrong number."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    name, D, B, C = (
        choose.choice(list(ACTIVATIONS)),
        choose.choice([12, 48, 108]),
        choose.randint(1, 6),
        choose.choice([12, 20, 40]),
    )
    bias, fresh, kind = choose.random() < 0.5, choose.random() < 0.5, choose.choice(KINDS)
    layers: list[nn.Module] = []
    n = D
    for _ in range(choose.randint(1, 3)):
        m = choose.choice([20, 40, 80])
        layers += [nn.Linear(n, m, bias=bias), ACTIVATIONS[name]()]
        n = m
    layers.append(nn.Linear(n, C, bias=bias))
    for layer in layers:
        if isinstance(layer, nn.Linear) and not fresh:
            nn.init.normal_(layer.weight, 0, 1.6 / layer.in_features**0.5)
    model, x = nn.Sequential(*layers), torch.rand(B, D)
    labels = torch.randperm(C)[:B] if kind == "distinct" else torch.randint(C, (B,))
    if kind == "same":
        labels[:] = labels[0]
    rows = soft_targets(labels, C, kind, torch.Generator().manual_seed(seed))
    try:
        peeled = unsum.peel(model, unsum.capture(model, x, rows))
    except unsum.UnsumError:
        return name, "not all certified"
    return name, judge(peeled, x)


def judge(peeled: unsum.Peeled, x: torch.Tensor) -> str:
    errors = (torch.cdist(peeled.inputs, x.double()) / x.double().norm(dim=1)).min(1).values[peeled.exact]
    predicted = peeled.errors[peeled.exact]
    if bool((errors > 1e-3).any()) or (bool(peeled.exact.all()) and len(peeled.inputs) != len(x)):
        return "certified but wrong"
    if bool((errors > (10 * predicted).clamp_min(1e-5)).any()):
        return "off by more than predicted × 10"
    return "all certified, all right" if bool(peeled.exact.all()) else "not all certified"


if __name__ == "__main__":
    main()
