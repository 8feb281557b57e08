"""Networks for tables, through Python: cross-entropy, yes and no from one output, several labels at
once, and numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.audits import shares

ROWS = 2 * torch.randn(4, 20, generator=torch.Generator().manual_seed(1))


def network(outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, outputs))


def several_labels() -> Tensor:
    rows = torch.zeros(4, 30)
    for place, labels in enumerate(([1, 5], [2], [5, 7, 9], [11, 20])):
        rows[place, labels] = 1
    return rows


def test_a_table_with_cross_entropy(tmp_path) -> None:
    report = unsum.audit(network(30), (ROWS, torch.tensor([3, 3, 11, 20])), loss="cross-entropy")
    assert report.verdict.level == "severe"
    assert report.scores["label_correct"] == 1
    assert "The client's loss (cross-entropy)." in report.granted
    assert report.setting.loss == "cross-entropy"
    assert "Sample by sample" in report.write(tmp_path / "report").read_text("utf-8")


def test_several_labels_at_once_come_back_all(tmp_path) -> None:
    report = unsum.audit(network(30), (ROWS, several_labels()), loss="bce")
    assert min(report.leakages) > 0.99
    labels = ["class 1, class 5", "class 2", "class 5, class 7, class 9", "class 11, class 20"]
    assert [row.label for row in report.rows] == [row.found_label for row in report.rows] == labels
    assert report.scores["label_correct"] == 1
    assert "class 5, class 7, class 9" in report.write(tmp_path / "report").read_text("utf-8")


@pytest.mark.parametrize(
    "answers", [torch.tensor([0, 1, 1, 0]), torch.tensor([[0.0], [1.0], [1.0], [0.0]])]
)
def test_one_output_for_yes_and_no_is_never_called_safe(answers: Tensor) -> None:
    report = unsum.audit(network(1), (ROWS, answers), loss="bce")
    assert [row.label for row in report.rows] == ["0", "1", "1", "0"]
    assert report.setting.loss == "bce"
    assert report.scores["samples"] == 4


def test_a_label_counts_only_where_all_of_them_are_right() -> None:
    model, data = network(30), (ROWS, several_labels())
    leak = unsum.attack(model, unsum.capture(model, *data, loss="bce"), loss="bce")
    assert unsum.score(leak, targets=data[1])["label_correct"] == 1
    fewer = data[1].clone()
    fewer[0, 5] = 0
    # the largest entry alone would still agree
    assert unsum.score(leak, targets=fewer)["label_correct"] == 0.75
    with pytest.raises(unsum.UnsumError, match="loss='bce'"):
        unsum.audit(model, data)


def test_numbers_under_the_squared_error() -> None:
    report = unsum.audit(network(1), (ROWS, torch.tensor([0.25, -1.5, 7.0, 0.0])), loss="mse")
    assert [row.label for row in report.rows] == ["0.25", "-1.5", "7", "0"]


def test_rows_of_a_table_are_shown_as_no_pictures(tmp_path) -> None:
    report = unsum.audit(network(30), (ROWS, torch.tensor([3, 3, 11, 20])))
    page = report.write(tmp_path / "report").read_text("utf-8")
    assert "no picture</div>" not in page
    assert "PSNR (dB)" not in page
    assert "The samples are no pictures; what came back of each is in the table below." in page


def test_what_is_not_known_is_said_in_print() -> None:
    report = unsum.audit(network(30), (ROWS, torch.tensor([3, 3, 11, 20])))
    assert "not known" not in str(report)
    said = str(replace(report, shares=shares(1.0, math.nan, 1.0, math.nan)))
    assert "Found: sample 1: 100 %, sample 3: 100 %; of 2 not known." in said
