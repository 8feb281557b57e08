"""What further rounds on the same batch give: features' errors against the number of rounds, the noise and the body's moves.

    python benchmarks/rounds.py --out docs/results/tables/rounds.md

A two-layer network whose head differs from round to round by a third of its weights' deviation, as a global model's does; the
body stays as it is, or moves a little. The truth is only compared with.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import unsum

CLASSES, FEATURES, INPUTS, HEAD_MOVES = 50, 128, 20, 0.3


@dataclass(frozen=True)
class Case:
    batch: int = 6
    noise: float = 1e-2
    body: float = 0.0
    duplicates: bool = False


CASES = [
    Case(),
    Case(noise=1e-3),
    Case(noise=1e-4, duplicates=True),
    Case(noise=1e-2, body=1e-2),
    Case(noise=1e-2, body=0.1),
    Case(noise=0.0),
    Case(noise=0.0, body=1e-2),
]


def attacked(case: Case, seed: int, most: int) -> list[tuple[float, float, bool]]:
    """For 1, 2, 4, … rounds the worst error, the prediction, and whether the rounds fitted together."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.ReLU(), nn.Linear(FEATURES, CLASSES))
    with torch.no_grad():
        model[2].weight.mul_(3)
    images, labels = torch.randn(case.batch, INPUTS), torch.randint(CLASSES, (case.batch,))
    if case.duplicates:
        labels = torch.tensor([3] * (case.batch // 2) + [7] * (case.batch - case.batch // 2))
    rounds, features = [], []
    for number in range(most):
        here = copy.deepcopy(model)
        with torch.no_grad():
            for layer, amount in ((here[2], HEAD_MOVES), (here[0], case.body)):
                layer.weight.add_(amount * (number > 0) * layer.weight.std() * torch.randn_like(layer.weight))
        noise = unsum.Noise(case.noise) if case.noise else ()
        rounds.append((here, unsum.capture(here, images, labels, train=False, defenses=noise)))
        features.append(here[:2](images).detach())
    results = []
    for count in (1, 2, 4, 8):
        if count <= most:
            leak = unsum.separate_rounds(rounds[:count], batch_size=case.batch)
            fits = not any("do not fit together" in note for note in leak.notes)
            # Where the rounds do not fit, the answer is of one of them, which its note names.
            truths = [torch.stack(features[:count]).mean(0)] if fits else features[:count]
            errors = [unsum.score(leak, features=f, targets=labels)["worst_feature_error"] for f in truths]
            results.append((min(errors), leak.predicted_error, fits))
    return results


def row(case: Case, repeats: int, most: int) -> str:
    every = [attacked(case, seed, most) for seed in range(repeats)]
    cells = []
    for column in zip(*every, strict=True):
        error, predicted = (statistics.median(result[i] for result in column) for i in (0, 1))
        apart = sum(not result[2] for result in column)
        cells.append(f"{error:.1e} ({predicted:.1e}){f', {apart} of {repeats} apart' if apart else ''}")
    labels = "two labels" if case.duplicates else "any labels"
    return f"| {case.batch}, {labels} | {case.noise:g} | {case.body:g} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=int, default=4, help="rounds at most")
    parser.add_argument("--out", type=Path, help="write the table into this page, below its marker")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    counts = [count for count in (1, 2, 4, 8) if count <= chosen.most]
    lines = [f"| samples | noise | body moved | {' | '.join(f'{count} rounds' for count in counts)} |"]
    lines.append(f"|---|--:|--:|{'---|' * len(counts)}")
    for case in CASES:
        lines.append(row(case, chosen.repeats, chosen.most))
        print(lines[-1], flush=True)
    if chosen.out:
        marker = "<!-- table -->"
        page = chosen.out.read_text("utf-8") if chosen.out.exists() else f"# Several rounds\n\n{marker}\n"
        chosen.out.write_text(page.partition(marker)[0] + marker + "\n" + "\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
