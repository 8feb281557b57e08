"""How far the equations go: the share of samples recovered over batch size, classes and kind of labels.

uv run python benchmarks/exact_map.py > docs/results/tables/exact-map.md
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

import unsum
from cases import KINDS, make_case
from unsum.deadline import time_limit
from unsum.score import score_samples

SHARES = (0.05, 0.125, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)  # of C; C − 1 comes on top
RECOVERED = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 30, 100])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    cells = [(C, B, kind) for C in options.classes for B in sizes(C) for kind in options.kinds]
    jobs = [(C, B, kind, seed) for C, B, kind in cells for seed in range(options.seeds)]
    shares: dict[tuple[int, int, str], list[float]] = {cell: [] for cell in cells}
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for done, (job, share) in enumerate(zip(jobs, pool.map(run, jobs), strict=True), 1):
            shares[job[:3]].append(share)
            if done % 50 == 0:
                print(f"{done}/{len(jobs)}", file=sys.stderr, flush=True)
    print(page(options, shares))


def sizes(C: int) -> list[int]:
    return sorted({max(1, round(share * C)) for share in SHARES} | {C - 1})


def run(job: tuple[int, int, str, int]) -> float:
    """The share of samples whose features came back within 0.1 %."""
    C, B, kind, seed = job
    torch.set_num_threads(1)
    case = make_case(B, C, 512, kind, seed=seed)
    leak = unsum.separate(case.model, case.update, seed=seed)
    rows = score_samples(leak, targets=case.targets, features=case.features)
    return sum(row.feature_error < RECOVERED for row in rows) / B


def page(options: argparse.Namespace, shares: dict[tuple[int, int, str], list[float]]) -> str:
    classes, kinds, seeds = options.classes, options.kinds, options.seeds
    lines = [
        "# How far the exact solver goes",
        "",
        f"`uv run python benchmarks/exact_map.py --classes {' '.join(map(str, classes))} --kinds {' '.join(kinds)} "
        f"--seeds {seeds}`,",
        f"{platform.machine()}, one core per case. Percent of samples whose features came back within 0.1 %,",
        "labels and batch size unknown; synthetic features (H = 512), a freshly initialized head,",
        "float32 gradients. `half`: one label on half of the batch. `both`: mixup and smoothing together.",
    ]
    for C in classes:
        lines += ["", f"## C = {C}", "", "| B | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
        for B in sizes(C):
            cells = [f"{100 * sum(shares[C, B, kind]) / seeds:.0f}" for kind in kinds]
            lines.append(f"| {B} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
