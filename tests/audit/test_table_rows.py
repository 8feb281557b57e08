"""Audits of tables: rows in the user's units beside the truth, through dense layers, embeddings and
one-logit heads."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn

import unsum
from unsum.audit import Audit

JOBS, CITIES = (
    ["clerk", "driver", "farmer", "nurse", "teacher"],
    ["Bonn", "Jena", "Kiel", "<b>Ulm</b>"],
)


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> Path:
    """Made-up people, of whom each has a number, two of several values, one of two values, and a
    number with a decimal."""
    draw = random.Random(3)
    lines = ["age,job,sex,city,hours,income"]
    for _ in range(300):
        age, hours = draw.randint(18, 80), draw.uniform(5, 60)
        words = [draw.choice(JOBS), draw.choice("fm"), draw.choice(CITIES)]
        lines.append(",".join([str(age), *words, f"{hours:.1f}", draw.choice(["high", "low"])]))
    path = tmp_path_factory.mktemp("tables") / "people.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def true_cells(path: Path, title: str) -> list[str]:
    """Of a row, out of the file itself."""
    return (
        path.read_text("utf-8").splitlines()[int(title.removeprefix("line ")) - 1].split(",")[:-1]
    )


def check_whole(report: Audit, people: Path) -> None:
    """Every row came back, in every cell as the file has it."""
    assert report.table is not None
    assert report.table.columns == ["age", "job", "sex", "city", "hours"]
    for row in report.table.rows:
        assert row.true == row.found == true_cells(people, row.title)
    assert report.table.rows_exact == report.table.cells_right == 1
    assert report.scores["label_correct"] == 1


def test_rows_come_back_in_the_tables_units(people, tmp_path) -> None:
    report = unsum.audit("mlp", people, target="income", batch=6)
    check_whole(report, people)
    page = report.write(tmp_path / "report").read_text("utf-8")
    assert "6 of 6 rows came back in every cell, and 30 of 30 cells in all" in page
    assert "≠</span>" not in page
    assert "<b>Ulm" not in page  # a cell of somebody's table is text
    found = json.loads((tmp_path / "report" / "result.json").read_text("utf-8"))["table"]
    assert found["rows"][0]["recovered"] == true_cells(people, report.table.rows[0].title)
    assert found["rows_exact"] == 1


def test_embeddings_tell_the_rows_and_name_the_categories(people) -> None:
    report = unsum.audit("mlp:embedded", people, target="income", batch=6)
    check_whole(report, people)
    jobs = {true_cells(people, row.title)[1] for row in report.table.rows}
    assert jobs < set(JOBS)
    assert set(report.table.named["job"]) == jobs


def test_one_output_tells_two_classes_apart(people) -> None:
    report = unsum.audit("mlp", people, target="income", batch=4, loss="bce")
    check_whole(report, people)
    assert report.setting.classes == 1
    assert {row.label for row in report.rows} <= {"high", "low"}
    assert [row.label for row in report.rows] == [row.found_label for row in report.rows]


def test_noise_takes_cells_away_and_names_no_category(people) -> None:
    how = {"target": "income", "batch": 6, "attack": "exact"}
    report = unsum.audit("mlp:embedded", people, defenses=unsum.Noise(10.0), **how)
    assert report.table.named == {}  # noise moves every embedding, whoever occurs
    assert [row.found for row in report.table.rows] == [None] * 6
    assert report.table.cells_right == report.table.rows_exact == 0
    pruned = unsum.audit("mlp:embedded", people, defenses=unsum.Prune(0.9), **how)
    assert pruned.table.named  # an entry that is left is of somebody
    occur = {true_cells(people, row.title)[1] for row in pruned.table.rows}
    assert set(pruned.table.named.get("job", [])) <= occur


def test_a_network_of_ones_own_with_an_embedding_of_as_many_values_as_classes(people) -> None:
    class Own(nn.Module):
        """Two cities of the embedding would pass for a vocabulary of two."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.job, self.city = nn.Embedding(5, 3), nn.Embedding(4, 2)
            self.layers = nn.Sequential(
                nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
            )

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            codes = rows[:, [1, 3]].long()
            return self.layers(
                torch.cat([rows[:, [0, 2, 4]], self.job(codes[:, 0]), self.city(codes[:, 1])], 1)
            )

    check_whole(unsum.audit(Own(), people, target="income", batch=5), people)


def test_a_cell_that_is_wrong_is_marked(people, tmp_path) -> None:
    from dataclasses import replace

    report = unsum.audit("mlp", people, target="income", batch=3)
    first, *others = report.table.rows
    wrong = replace(first, found=["99", *first.found[1:]], same=[False, *first.same[1:]])
    lost = replace(others[0], found=None, same=[])
    changed = replace(report, table=replace(report.table, rows=[wrong, lost, *others[1:]]))
    assert changed.table.rows_exact == 1 / 3
    assert changed.table.cells_right == 9 / 15
    page = changed.write(tmp_path / "report").read_text("utf-8")
    assert '99 <span class="mark wrong">≠</span>' in page
    assert "not read</td>" in page


def test_a_table_belongs_to_its_options(people) -> None:
    with pytest.raises(
        unsum.UnsumError, match=r"Say which column of 'people\.csv' the model predicts: --target"
    ):
        unsum.audit("mlp", people)
    with pytest.raises(unsum.UnsumError, match="--target and --columns describe a table"):
        unsum.audit("mlp", target="income")
    with pytest.raises(
        unsum.UnsumError, match="There is no model for tables 'torchvision:resnet18'"
    ):
        unsum.audit("torchvision:resnet18", people, target="income")


@pytest.mark.parametrize(
    ("model", "defense"), [("mlp", None), ("mlp:embedded", None), ("mlp", unsum.Prune(0.5))]
)
def test_the_headline_counts_the_rows_that_the_table_shows(people, model, defense) -> None:
    report = unsum.audit(
        model, people, target="income", batch=8, defenses=defense or (), time_limit=60
    )
    assert report.table is not None
    shown = [row.found is not None for row in report.table.rows]
    assert shown == [share.sample >= 0.2 for share in report.shares]
    if defense is None:
        assert report.verdict.headline == "This update gives away every row of the batch."
        assert all(shown)


def test_features_of_rows_are_not_the_rows(people) -> None:
    """Six people are read as what a normalized layer makes of them; nothing is in their own
    units."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Dropout(0.5), nn.Linear(40, 30))
    report = unsum.audit(
        net, people, target="income", batch=6, attack="exact", defenses=unsum.DropBias()
    )
    read = [row.found is not None for row in report.table.rows]
    assert not any(read)
    assert (report.verdict.level, report.verdict.read) == ("features", "features")
    assert report.verdict.headline == (
        "This update gives away the features of every row of the batch (40 features for 12 "
        "numbers)."
    )
