"""Rows of tables out of one update: how many come back whole, how many cells, and how long that
takes.

# a built-in set of scikit-learn's as a file
python -m unsum_bench.scripts.table_rows write breast-cancer breast-cancer.csv
# the table of docs/results/tables-of-people.md
python -m unsum_bench.scripts.table_rows measure --draws 5

`people` are made up, with the columns of UCI's Adult: 6 numbers and 8 categories of as many values
as there. A cell counts as found when its category is right, or its number to the last digit that
the table writes. `within 0.319 σ` counts numbers as Vero et al. 2023 (TabLeak) do: within 0.319
standard deviations.
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
import time
from pathlib import Path

import torch

import unsum
from unsum.data.table_schema import TableColumn

TOLERANCE = 0.319  # standard deviations: TabLeak's
SIZES = {  # values of Adult's categories, the missing one among them
    "workclass": 9, "education": 16, "marital-status": 7, "occupation": 15, "relationship": 6,
    "race": 5, "sex": 2, "native-country": 42,
}  # fmt: skip
SETS = ("people", "breast-cancer", "wine", "digits")


def write(name: str, path: Path) -> None:
    """A built-in set as CSV, its target in the last column."""
    if name == "people":
        rows = people(2000)
    else:
        from sklearn import datasets

        held = getattr(datasets, f"load_{name.replace('-', '_')}")()
        labels = [str(held.target_names[label]) for label in held.target]
        rows = [[*map(str, held.feature_names), "target"]]
        rows += [
            [*(f"{value:g}" for value in row), label]
            for row, label in zip(held.data, labels, strict=True)
        ]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def people(count: int) -> list[list[str]]:
    """Made-up ones: common values of a category are common, as in any census."""
    draw = random.Random(0)
    rows = [
        [
            "age",
            "fnlwgt",
            "education-num",
            "capital-gain",
            "capital-loss",
            "hours-per-week",
            *SIZES,
            "target",
        ]
    ]
    for _ in range(count):
        gain = draw.choice([0] * 9 + [draw.randint(100, 15000)])
        loss = draw.choice([0] * 19 + [draw.randint(150, 2500)])
        numbers = [
            draw.randint(17, 90),
            draw.randint(12000, 900000),
            draw.randint(1, 16),
            gain,
            loss,
            draw.randint(1, 99),
        ]
        words = [
            f"{name} {min(int(draw.expovariate(4 / size)), size - 1)}"
            for name, size in SIZES.items()
        ]
        rows.append([*map(str, numbers), *words, draw.choice(["<=50K", ">50K"])])
    return rows


def near(column: TableColumn, found: str, true: str) -> bool:
    """TabLeak's measure of a cell."""
    if column.kind != "number":
        return found == true
    return abs(float(found) - float(true)) <= TOLERANCE * column.deviation


def one(
    path: Path, model: str, batch: int, loss: str | None, known: bool, seed: int
) -> tuple[float, float, float, float, bool]:
    """Shares of whole rows, cells, cells near enough; seconds; the certificate."""
    start = time.process_time()
    report = unsum.audit(
        model,
        path,
        samples=unsum.ClientSamples(target="target", batch=batch),
        client=unsum.ClientTraining(loss=loss),
        attacker=unsum.Attacker(batch_size_known=known),
        seed=seed,
    )
    rows, schema = report.table, report.truth.schema
    assert rows is not None
    assert schema is not None
    cells = len(rows.rows) * len(rows.columns)
    close = sum(
        near(*cell)
        for row in rows.rows
        if row.found
        for cell in zip(schema.columns, row.found, row.true, strict=True)
    )
    return (
        rows.rows_exact,
        rows.cells_right,
        close / cells,
        time.process_time() - start,
        report.leak.exact,
    )


def measure(draws: int, batches: list[int], *, known: bool) -> None:
    print(
        "| table | network | B | whole rows | cells | cells within 0.319 σ | certified | CPU "
        "seconds |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name in SETS:
            path = Path(folder) / f"{name}.csv"
            write(name, path)
            kinds = [("mlp", None), ("mlp:embedded", None), ("mlp", "bce")]
            for model, loss in kinds if name == "people" else kinds[:1]:
                for batch in batches:
                    found = [one(path, model, batch, loss, known, seed) for seed in range(draws)]
                    whole, cells, close, seconds, exact = (
                        torch.tensor([row[i] for row in found], dtype=torch.float64).mean()
                        for i in range(5)
                    )
                    network = {"mlp": "one-hot", "mlp:embedded": "embedded"}[model] + (
                        ", one logit" if loss else ""
                    )
                    print(
                        f"| {name} | {network} | {batch} | {whole:.1%} | {cells:.1%} | {close:.1%} "
                        f"| {int(exact * draws)} of {draws} | {seconds:.1f} |".replace("%", " %"),
                        flush=True,
                    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("name", choices=SETS)
    writing.add_argument("path", type=Path)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--draws", type=int, default=5)
    measuring.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32])
    measuring.add_argument(
        "--size-unknown", action="store_true", help="the attacker is not told the batch size"
    )
    given = parser.parse_args()
    if given.command == "write":
        write(given.name, given.path)
    else:
        torch.set_num_threads(1)
        measure(given.draws, given.batches, known=not given.size_unknown)
