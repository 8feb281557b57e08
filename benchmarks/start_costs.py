"""What every start of the exact solver costs, and what it finds: on the certificate's cases, hopeless ones among them.

    uv run python benchmarks/start_costs.py --cases 2100 --first-seed 150000 --json starts.json
    uv run python benchmarks/start_costs.py --compare before.json after.json

The cases are those of `calibrate_exact.py`. A search has failed where its answer does not explain the gradient. Two files of
the same cases, of two versions of the solver, show what became faster and whether a case was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import unsum
from calibrate_exact import FAMILIES, RECOVERED, build
from unsum.separate.exact import exchange, extraction_sparse, hypotheses, search

_LOG: list[dict[str, Any]] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2100)
    parser.add_argument("--first-seed", type=int, default=150000)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds after which a solver begins nothing new")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=500.0, help="after which no further case is begun")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--not-recovered-in", type=Path, help="only those cases of a file: no other can have been lost")
    parser.add_argument("--as-before", action="store_true", help="as it was when every start was tried to its end")
    parser.add_argument("--compare", type=Path, nargs=2)
    options = parser.parse_args()
    if options.compare:
        compare(*(json.loads(path.read_text()) for path in options.compare))
        return
    if options.as_before:
        as_before()
    end = time.time() + options.seconds
    seeds = [options.first_seed + i for i in range(options.cases)]
    if options.not_recovered_in:
        seeds = [row["seed"] for row in json.loads(options.not_recovered_in.read_text()) if not row["recovered"]]
    jobs = [(seed, options.limit, end) for seed in seeds]
    rows = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("fork")) as pool:
        for done in as_completed([pool.submit(run, job) for job in jobs]):
            row = done.result()
            if row is not None:
                rows.append(row)
            if len(rows) % 100 == 0 and options.json:
                options.json.write_text(json.dumps(rows))
    rows.sort(key=lambda row: row["seed"])
    if options.json:
        options.json.write_text(json.dumps(rows))
    table(rows)


def as_before() -> None:
    """Undetermined hypotheses, fifteen failing exchanges, one hunt at a time, every start to its end; zeros before exchanges."""
    hypotheses.Hypothesis.determined = lambda *_: True  # type: ignore[method-assign]
    hypotheses.Hypothesis.rigid = hypotheses.Known.full = property(lambda _: False)  # type: ignore[assignment, method-assign]
    exchange._FAILURES, exchange._PROGRESS, exchange._FAR, extraction_sparse._TOGETHER = 15, 0.999, float("inf"), 0
    search._agree = lambda _: False
    now = search.in_order

    def then(known: Any) -> list[Any]:
        starts = now(known)
        names = [start.name for start in starts]
        if known.near_classes and {"exchanged", "thinned"} <= set(names):
            first, second = names.index("exchanged"), names.index("thinned")
            starts[first], starts[second] = starts[second], starts[first]
        return starts

    search.in_order = then


def run(job: tuple[int, float, float]) -> dict[str, Any] | None:
    seed, limit, end = job
    if time.time() > end:
        return None
    torch.set_num_threads(1)
    family = FAMILIES[seed % len(FAMILIES)]
    case = build(family, seed)
    _LOG.clear()
    known = len(case.features) if family == "zero head" else None
    start = time.process_time()
    leak = unsum.separate(case.model, case.update, batch_size=known, seed=seed, time_limit=limit)
    seconds = time.process_time() - start
    error = case.worst_error(leak)
    failed = any(
        "not a solution" in note or "no probabilities" in note or "do not explain" in note for note in leak.notes
    )
    failed |= any("led to finite" in note or "stands out of its noise" in note for note in leak.notes)
    return {
        "seed": seed, "family": family, "B": len(case.features), "seconds": seconds, "exact": leak.exact, "error": error,
        "recovered": error < min(RECOVERED, 0.1 * case.closest), "failed": failed, "starts": list(_LOG),
        "found": leak.batch_size, "residual": leak.residual,
    }  # fmt: skip


def noted(self: search.Search, start: Any) -> Any:
    """`Search.led_to`, with a line about it; before the first one, with what is known of the update."""
    observation, known = self.known.observation, self.known
    if not _LOG or "rank" not in _LOG[0]:
        _LOG.append({
            "rank": observation.rank, "C": observation.classes, "H": observation.A.shape[1], "peaked": known.peaked,
            "negative": known.more_negative_than_labels, "added": observation.noise.added,
            "relative": observation.noise.relative, "bias": observation.grad_b is not None,
            "ways": list(known.hypotheses), "scale": known.line.scale,
            "zeros": float((observation.U.abs().amax(1) == 0).double().mean()),
        })  # fmt: skip
    began = time.process_time()
    candidate = _led_to(self, start)
    line: dict[str, Any] = {"start": start.name, "seconds": round(time.process_time() - began, 5)}
    if candidate is not None:
        line |= {"misfit": candidate.certificate.misfit, "explains": candidate.explains, "settles": candidate.settles}
        line |= {"verified": candidate.verified, "samples": len(candidate.at.T)}
    _LOG.append(line)
    return candidate


_led_to = getattr(search.Search, "led_to", None)
if _led_to is not None:  # older versions do not name it
    search.Search.led_to = noted  # type: ignore[method-assign]


def table(rows: list[dict[str, Any]]) -> None:
    failed = [row["seconds"] for row in rows if row["failed"]]
    lost = [row["seconds"] for row in rows if not row["recovered"]]
    print(
        f"{len(rows)} cases, {sum(row['recovered'] for row in rows)} recovered, {sum(row['exact'] for row in rows)} exact"
    )
    for name, seconds in (("searches that explain nothing", failed), ("batches that were not recovered", lost)):
        if seconds:
            print(f"{len(seconds)} {name}: CPU s median {statistics.median(seconds):.3f}, sum {sum(seconds):.1f}")
    spent, won = defaultdict(float), defaultdict(int)
    for row in rows:
        lines = [line for line in row["starts"] if "start" in line]
        for line in lines:
            spent[line["start"], row["failed"]] += line["seconds"]
        if lines and row["recovered"]:
            won[lines[-1]["start"]] += 1
    print("\n| start | CPU s, failing | CPU s, others | last of a recovered case |\n|---|--:|--:|--:|")
    for name in dict.fromkeys(name for name, _ in spent):
        print(f"| {name} | {spent[name, True]:.1f} | {spent[name, False]:.1f} | {won[name]} |")


def compare(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    then, now = ({row["seed"]: row for row in rows} for rows in (before, after))
    both = sorted(then.keys() & now.keys())
    for name in ("failed", "recovered"):
        chosen = [seed for seed in both if then[seed][name] == (name == "failed")]
        if chosen:
            medians = [statistics.median(rows[seed]["seconds"] for seed in chosen) for rows in (then, now)]
            what = "explained nothing before" if name == "failed" else "were not recovered before"
            print(
                f"{len(chosen)} {what}: CPU s median {medians[0]:.3f} and {medians[1]:.3f}, {medians[0] / medians[1]:.1f} times"
            )
    for name in ("recovered", "exact"):
        gone = [seed for seed in both if then[seed][name] and not now[seed][name]]
        come = [seed for seed in both if now[seed][name] and not then[seed][name]]
        print(f"{name}: {len(gone)} lost {gone}, {len(come)} won {come}, of {len(both)} cases")


if __name__ == "__main__":
    main()
