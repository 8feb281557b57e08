"""Start-up in one run: CPU seconds of `import torch`, `import unsum` and quick commands, as ratios;
then the default audit.

python -m unsum_bench.scripts.startup
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
UNSUM = [sys.executable, "-m", "unsum"]
BASELINE = "import torch"
MEASURED = {
    BASELINE: [sys.executable, "-c", "import torch"],
    "import unsum": [sys.executable, "-c", "import unsum"],
    "from unsum import *": [sys.executable, "-c", "from unsum import *"],
    "unsum --help": [*UNSUM, "--help"],
    "unsum --version": [*UNSUM, "--version"],
    "unsum list": [*UNSUM, "list"],
    "unsum audit --bach 3": [*UNSUM, "audit", "--bach", "3"],
}
ALLOWED = {BASELINE: "", "import unsum": "ratio 1.3", "from unsum import *": "ratio 1.3"}


def seconds(command: list[str]) -> float:
    """CPU time of one process, which a busy machine stretches less than the time on the wall."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    taken: dict[str, list[float]] = {name: [] for name in MEASURED}
    for _ in range(REPEATS):  # interleaved, so that a busy moment hits all
        for name, command in MEASURED.items():
            taken[name].append(seconds(command))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(
            [*UNSUM, "audit", "--out", folder, "--json"], check=True, capture_output=True
        )
        audit = time.perf_counter() - start
    # the largest child: kilobytes on Linux
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6

    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}\n"
    )
    print("| | CPU time | ratio to torch | allowed |\n|---|---|---|---|")
    for name, median in medians.items():
        print(
            f"| `{name}` | {median:.2f} s | {median / medians[BASELINE]:.2f} | "
            f"{ALLOWED.get(name, '0.5 s')} |"
        )
    print(
        f"\n`unsum audit`, from the command to the report: {audit:.1f} s (allowed: 60 s), "
        f"{peak:.2f} GB (allowed: 2 GB)"
    )


if __name__ == "__main__":
    main()
