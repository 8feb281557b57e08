"""What ceilings cost: the default audit with and without, and how long a decision takes on
ResNet-18 at 224².

python -m unsum_bench.scripts.ceilings time                    # both, CPU seconds, on one thread
python -m unsum_bench.scripts.ceilings time --parts decision --noise 5 10 --threads 2

Every run is a process of its own, whose CPU seconds count from its start: what it imports and
builds is in them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

AUDIT = "import unsum; audit = unsum.audit({how}); print(audit)"
DECISION = (
    "import unsum; found = unsum.ceiling('torchvision:resnet18', image_size=224, batch=8, "
    "noise={noise}, level=0.2); print(found.decided(0.2), found.pairs, len(found.distances.named), "
    "round(found.highest, 3), sep=', ')"
)
MOST = 1.5  # times the audit without a ceiling
LIMIT = 120.0  # [s] for a decision


def run(code: str, threads: int) -> tuple[float, float, str]:
    """CPU seconds, seconds, and the last line that was printed."""
    many = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | many,
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, time.perf_counter() - start, done.stdout.strip().splitlines()[-1]


def audits(times: int, threads: int) -> dict[str, list[float]]:
    """Alternating, so that what else the machine does falls on both."""
    spent: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(times):
        for name, how in (("with", ""), ("without", "ceiling=False")):
            cpu, wall, said = run(AUDIT.format(how=how), threads)
            spent[name].append(cpu)
            print(
                f"default audit {name} a ceiling: {cpu:.1f} CPU s, {wall:.1f} s. {said}", flush=True
            )
    ratio = median(spent["with"]) / median(spent["without"])
    print(
        (
            f"medians: {ratio:.2f} times the audit without "
            f"({'within' if ratio <= MOST else 'above'} {MOST})."
        ),
        flush=True,
    )
    return spent


def decisions(noises: list[float], threads: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for noise in noises:
        cpu, wall, said = run(DECISION.format(noise=noise), threads)
        rows.append({"noise": noise, "cpu": cpu, "seconds": wall, "said": said})
        took = f"{cpu:.0f} CPU s, {wall:.0f} s of {LIMIT:.0f}"
        print(f"σ = {noise:g}: {said} (decision, pairs, worlds, highest); {took}", flush=True)
    return rows


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", nargs="*", default=["audit", "decision"], choices=["audit", "decision"]
    )
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--noise", nargs="*", type=float, default=[1.0, 5.0, 10.0, 15.0, 20.0, 40.0]
    )
    options = parser.parse_args(arguments)
    found: dict[str, object] = {}
    if "audit" in options.parts:
        found["audit"] = audits(options.times, options.threads)
    if "decision" in options.parts:
        found["decision"] = decisions(options.noise, options.threads)
    print(json.dumps(found))
