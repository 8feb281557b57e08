"""Every defense at several strengths against every attack: what each reads of the default model's
batch, beside what nobody can exceed.

    python -m unsum_bench.scripts.noise defenses --json defenses.json  # ten minutes on one core
    python -m unsum_bench.scripts.noise defenses --table defenses.json
    python -m unsum_bench.scripts.noise defenses --only noise:0.1 sign

The client is that of `unsum audit`: the embedded model and its eight photos. Leakage is that of
reports, of the features or of the picture, whichever is more. The batch size is granted to all
attacks. `auto` is `unsum attack`'s choice, and the attacks that it tried stand beside it one by
one; others are asked by name, those that take labels with the labels that the rule `templates`
finds. Ceilings are of Gaussian noise; of any other defense nothing is proven here, which counts as
100 %.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import unsum
from unsum.audit import Audit
from unsum.defend import parse_defense
from unsum.defend.added import AddedNoise
from unsum.errors import UnsumError
from unsum.running.sharing import sharing_models
from unsum_bench.scripts.ceilings import percent

DEFENSES = (
    "noise:0.01", "noise:0.1", "noise:0.3", "laplace:0.02", "prune:0.99", "prune:0.999", "sign",
    "quantize:1", "qsgd:64", "clip:1", "dp:0.1", "mixup:1", "soteria:0.5", "nvflare:percentile",
    "secagg:4", "drop-bias",
)  # fmt: skip
# Attack → the rule whose labels it is given; "" for its own.
BY_NAME = {"fgla": "templates", "rgla-newton": "templates"}
_SECONDS = 20.0  # [s] for each attack. Chosen by: arbitrary budget
# [share] of a photo by which another attack reads clearly more than auto. Chosen by: arbitrary
_CLEARLY = 0.02


@dataclass(frozen=True)
class Read:
    """What one attack reads of the eight samples."""

    most: float
    mean: float
    labels: int = -1  # right ones; −1 where nobody counted

    @classmethod
    def of(cls, leakages: list[float], labels: int = -1) -> Read:
        known = [0.0 if math.isnan(value) else value for value in leakages]  # little, undecided
        return cls(max(known), statistics.mean(known), labels)


def play(defense: str, attack: str, rule: str) -> Audit:
    return unsum.audit(
        defenses=parse_defense(defense),
        attacker=unsum.Attacker(attack=attack, label_rule=rule or None, batch_size_known=True),
        limits=unsum.AuditLimits(time_limit=_SECONDS, ceiling=False),
        seed=0,
    )


def measured(defense: str) -> dict[str, Any]:
    """One line of the table: attack → what it reads."""
    start, reads = time.process_time(), dict[str, Read]()
    found = play(defense, "auto", "")
    labels = sum(score.label_correct == 1 for score in found.samples)
    tried = [one.leakages for one in found.tried if one.leakages]
    most = [max(values) for values in zip(*tried, strict=True)] or [0.0] * len(found.samples)
    reads["auto"] = Read.of(most, labels)
    for one in found.tried:
        if one.leakages:
            reads[f"auto: {one.attack}"] = Read.of(one.leakages)
    for attack, rule in BY_NAME.items():
        name = attack if not rule else f"{attack}, labels by {rule}"
        try:
            alone = play(defense, attack, rule)
        except UnsumError:  # it does not apply
            continue
        right = sum(score.label_correct == 1 for score in alone.samples)
        strongest = [one.leakages for one in alone.tried if one.leakages]
        most = [max(values) for values in zip(*strongest, strict=True)] or alone.leakages
        reads[name] = Read.of(most, right)
    return {
        "defense": defense,
        "seconds": time.process_time() - start,
        "reads": {name: vars(read) for name, read in reads.items()},
    }


def ceilings(defenses: list[str], pairs: int) -> dict[str, tuple[float, float]]:
    """The largest and the mean limit under Gaussian noise, of the same photos; 1 for all others."""
    limits = dict.fromkeys(defenses, (1.0, 1.0))
    noises = [defense for defense in defenses if defense.startswith("noise:")]
    if not pairs or not noises:
        return limits
    bound = unsum.ceiling(noise=1.0, pairs=pairs, time_limit=math.inf)
    for defense in noises:
        under = bound.under(AddedNoise("gaussian", float(defense.removeprefix("noise:"))))
        limits[defense] = under.highest, under.mean
    return limits


def best(reads: dict[str, Any]) -> str:
    """Of the attacks by name and those that `auto` tried, the one that reads most on average."""
    alone = {name: read for name, read in reads.items() if name != "auto"}
    return max(alone, key=lambda name: alone[name]["mean"], default="")


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| defense | auto: most | mean | labels | reads most on average | mean | ceiling, most | "
        "ceilings, mean |",
        "|---|--:|--:|--:|---|--:|--:|--:|",
    ]
    for row in rows:
        own, name = row["reads"]["auto"], best(row["reads"])
        mean = row["reads"][name]["mean"] if name else 0.0
        shown = name.removeprefix("auto: ") or "none"
        if mean < 0.005:
            shown = "none"
        elif mean > own["mean"] + _CLEARLY:
            shown = f"**{shown}**"
        most, limit = row["ceiling"]
        lines.append(
            f"| {row['defense']} | {percent(own['most'])} | {percent(own['mean'])} | "
            f"{own['labels']} of 8 | {shown} | {percent(mean)} | ≤ {percent(most)} | "
            f"≤ {percent(limit)} |"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(DEFENSES))
    parser.add_argument("--pairs", type=int, default=64, help="of worlds, for ceilings; 0: none")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args(arguments)
    if asked.table is not None:
        print(table(json.loads(asked.table.read_text())))
        return
    limits, rows = ceilings(asked.only, asked.pairs), list[dict[str, Any]]()
    with sharing_models():
        for defense in asked.only:
            try:
                rows.append(measured(defense) | {"ceiling": limits[defense]})
            except UnsumError as reason:  # not of this model
                print(f"{defense}: {reason}", flush=True)
                continue
            print(json.dumps(rows[-1]), flush=True)
            if asked.json is not None:
                asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))
    threads, seconds = torch.get_num_threads(), sum(row["seconds"] for row in rows)
    print(
        f"{platform.machine()}, {threads} threads, torch {torch.__version__}, {seconds:.0f} CPU "
        "seconds."
    )
