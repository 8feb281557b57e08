"""What the privacy filters that platforms ship leave of one client's update, at the values they
ship with, and what they cost.

python -m unsum_bench.scripts.platform_defaults  # the table of docs/results/platform-defaults.md

Photos: 8 embedded ones through the default model in eval mode (DP-SGD takes no BatchNorm in train
mode). Rows: 8 made-up people through two dense layers (`table_rows.py`). The client takes one step
at a learning rate of 0.01 and sends the change of its weights. Accuracy is that of the small
federated training of `unsum audit --sweep`, under the same filter, with updates of this size.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import torch

from unsum.attack.options import AUTO, AttackOptions
from unsum.audit.groups import ClientSamples, ClientTraining
from unsum.audit.inputs import Inputs
from unsum.audit.sweep import task
from unsum.audit.sweep.bench import Bench, Point
from unsum.audit.sweep.task import photo_tiles, ruins
from unsum.defend import parse_defense
from unsum_bench.scripts.table_rows import write

FILTERS = (
    "flower:fixed-clipping", "flower:adaptive-clipping", "flower:local-dp", "nvflare:percentile",
    "nvflare:svt", "nvflare:exclude-vars", "opacus:readme",
)  # fmt: skip
RATE = 0.01  # a usual learning rate of SGD


def share(value: float) -> str:
    return "not decidable" if math.isnan(value) else f"{100 * value:.0f} %"


def leaked(point: Point) -> str:
    if not point.samples:
        return "not decidable"
    return (
        f"{share(point.worst)}, {share(point.mean)}, {point.labels_right} of {len(point.samples)}"
    )


def main(seconds: float, names: list[str]) -> None:
    # a machine that does other work trains for longer than an audit would wait
    task._PATIENCE = math.inf
    pictures = photo_tiles()
    options = AttackOptions(AUTO, time_limit=seconds, device=torch.device("cpu"), seed=0)
    training = ClientTraining(learning_rate=RATE, local_steps=1).training
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.csv"
        write("people", path)
        photos, rows = (
            Inputs().simulated(),
            Inputs("mlp", path, samples=ClientSamples(target="target")).simulated(),
        )
    priced = Bench(photos[0].model, photos[1], options, False, training, pictures=pictures)
    table = Bench(rows[0].model, rows[1], options, False, training)
    print(
        "| filter | photos: worst, mean, labels | rows: worst, mean, labels | rows whole | "
        "accuracy |"
    )
    print("|---|---|---|--:|--:|")
    before = None
    for name in ("none", *names):
        chain = [] if name == "none" else [parse_defense(name)]
        first, played = priced.defended(chain, None), table.play(chain)
        second = table.point(played, chain)
        before = before or first.accuracy
        cost = "–" if first.accuracy is None else share(first.accuracy.mean)
        ruined = (
            " (ruined)"
            if first.accuracy and before and ruins(before, first.accuracy, pictures.chance)
            else ""
        )
        whole = (
            "–" if played.table is None or not second.samples else share(played.table.rows_exact)
        )
        print(
            f"| {name} | {leaked(first)} | {leaked(second)} | {whole} | {cost}{ruined} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="that one attack may take")
    torch.set_num_threads(1)
    parser.add_argument("--only", nargs="+", default=list(FILTERS), help="these filters")
    given = parser.parse_args()
    main(given.seconds, given.only)
