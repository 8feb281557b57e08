"""Start-up and the default audit: import time as a ratio to its dependencies, wall time and peak memory of `unsum audit`.

uv run python benchmarks/startup.py
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

REPEATS = 5


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    baseline, ours = [], []
    for _ in range(REPEATS):  # interleaved, so that a busy moment hits both
        baseline.append(seconds("import torch, torchvision"))
        ours.append(seconds("import unsum"))
    before, after = statistics.median(baseline), statistics.median(ours)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(["unsum", "audit", "--out", folder, "--json"], check=True, capture_output=True)
        audit = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6  # the largest child: kilobytes on Linux

    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print("| | measured | allowed |\n|---|---|---|")
    print(f"| import torch, torchvision (median of {REPEATS}) | {before:.2f} s | |")
    print(f"| import unsum | {after:.2f} s, ratio {after / before:.2f} | ratio 1.5 |")
    print(f"| `unsum audit`, from the command to the report | {audit:.1f} s | 60 s |")
    print(f"| its peak memory | {peak:.2f} GB | 2 GB |")


if __name__ == "__main__":
    main()
