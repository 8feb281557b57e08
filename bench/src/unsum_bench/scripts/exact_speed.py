"""The exact solver beside RGLA's optimizer, and how its time grows with the batch; all in one run
on one machine.

Seconds of the processor on one thread of a CPU, so that other work on the machine does not count;
else on the clock.

# against 20 000 steps of Adam, labels granted to RGLA only
python -m unsum_bench.scripts.exact_speed rgla
python -m unsum_bench.scripts.exact_speed growth --features 100352 --device cuda
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import time
from collections.abc import Callable

import torch

import unsum
from unsum.running.deadline import time_limit
from unsum_bench.scripts.cases import Case, make_case


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=["rgla", "growth"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--kinds", nargs="+", default=["random", "same"])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    name = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(
        (
            f"{name}, torch {torch.__version__}, H = {options.features}, float32 gradients, batch "
            "size unknown.\n"
        ),
        flush=True,
    )
    (against_rgla if options.table == "rgla" else growth)(options)


def against_rgla(options: argparse.Namespace) -> None:
    print(
        "| C | B | labels | RGLA s | exact s | ratio | RGLA worst error | exact worst error | "
        "ratio | certificate |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for C in options.classes:
        for B in options.batches:
            for kind in options.kinds:
                case = make_case(B, C, options.features, kind, seed=B, device=options.device)
                ours, leak = exact(case, options)
                labels = case.targets.argmax(1).to(options.device)
                theirs, published = timed(
                    lambda c=case, y=labels: unsum.separate(c.model, c.update, "rgla", labels=y),
                    options,
                )
                errors = case.worst_error(published), case.worst_error(leak)
                print(
                    f"| {C} | {B} | {kind} | {theirs:.1f} | {ours:.3f} | {theirs / ours:.0f} | "
                    f"{errors[0]:.1e} | {errors[1]:.1e} | {errors[0] / errors[1]:.0f} | "
                    f"{'exact' if leak.exact else f'{leak.predicted_error:.0e}'} |",
                    flush=True,
                )


def growth(options: argparse.Namespace) -> None:
    print(
        "| C | B | labels | seconds (median) | worst feature error | labels right | certificate |"
    )
    print("|---|---|---|---|---|---|---|")
    for C in options.classes:
        for kind in options.kinds:
            for B in options.batches:
                case = make_case(B, C, options.features, kind, seed=B, device=options.device)
                seconds, leak = exact(case, options)
                right = (
                    "yes"
                    if sorted(leak.labels.tolist()) == sorted(case.targets.argmax(1).tolist())
                    else "no"
                )
                sure = "exact" if leak.exact else f"{leak.predicted_error:.0e}"
                print(
                    (
                        f"| {C} | {B} | {kind} | {seconds:.3f} | {case.worst_error(leak):.1e} | "
                        f"{right} | {sure} |"
                    ),
                    flush=True,
                )


def exact(case: Case, options: argparse.Namespace) -> tuple[float, unsum.Leak]:
    """The median of several runs after one that warms up; the factorization is part of each."""
    runs = [
        timed(lambda: unsum.separate(case.model, case.update), options)
        for _ in range(options.repeats + 1)
    ]
    return statistics.median(seconds for seconds, _ in runs[1:]), runs[-1][1]


def timed(work: Callable[[], unsum.Leak], options: argparse.Namespace) -> tuple[float, unsum.Leak]:
    if options.device == "cuda":
        torch.cuda.synchronize()
    clock = (
        time.process_time
        if options.device == "cpu" and torch.get_num_threads() == 1
        else time.perf_counter
    )
    start = clock()
    leak = work()
    if options.device == "cuda":
        torch.cuda.synchronize()
    return clock() - start, leak


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
