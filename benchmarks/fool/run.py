"""Random cases of one path for some minutes: how many tries, claims and false claims, and the yield on ordinary cases."""

from __future__ import annotations

import argparse
import json
import random
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from fool_judge import FALSE_CLAIM, Try
from unsum.separate.exact import search as exact_search


def main(random_genome: Callable[..., dict[str, Any]], attempt: Callable[[dict[str, Any], float], Try]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--tries", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=2.0)
    parser.add_argument("--ordinary", action="store_true", help="cases as most clients send them, for the yield")
    options = parser.parse_args()
    torch.set_num_threads(1)
    exact_search._PATIENCE = 0.3  # seconds for further starts, not the solver's 8
    chance, start = random.Random(options.seed), time.perf_counter()
    tries: list[Try] = []
    crashes: list[str] = []
    while time.perf_counter() - start < 60 * options.minutes and len(tries) < options.tries:
        genome = random_genome(chance, ordinary=options.ordinary)
        try:
            tried = attempt(genome, options.deadline)
        except Exception:
            crashes.append(f"{traceback.format_exc(limit=-1)} in {json.dumps(genome)}")
            continue
        tries.append(tried)
        if tried.fooled:
            print(json.dumps({"how": tried.fooled, "error": tried.error, "genome": genome}), flush=True)
    claims = [t for t in tries if t.claimed]
    found = [t for t in tries if t.error < FALSE_CLAIM and t.label_error < FALSE_CLAIM]
    stopped = sum(t.ended == "stopped" for t in tries)
    for crash in crashes[:5]:
        print(crash)
    print(
        f"{len(tries)} tries, {len(claims)} claims, {sum(bool(t.fooled) for t in tries)} false; "
        f"{sum(t.claimed for t in found)} of {len(found)} recovered were claimed; {stopped} stopped, {len(crashes)} crashed; "
        f"{sum(t.seconds for t in tries) / max(len(tries), 1):.2f} s each."
    )
