"""One update has one verdict and one exit code, whoever looks at it: a report, many updates at
once, a federated run."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.attack.chain import run_attack
from unsum.attack.options import AttackOptions
from unsum.audit.finding import ClientFinding, finding_of
from unsum.audit.gate import EXIT_CODES, result_of
from unsum.audit.many.table import write_csv
from unsum.audit.verdict import state_of
from unsum.commands.audit_many import _page_of as page_of
from unsum.commands.audit_many import summary
from unsum.models.load import LoadedModel

Case = Callable[[], tuple[nn.Module, unsum.Update]]


def certain() -> tuple[nn.Module, unsum.Update]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 30))
    return net, unsum.capture(net, torch.randn(4, 20), torch.tensor([1, 1, 5, 9]))


def rows() -> tuple[nn.Module, unsum.Update]:
    """Read by the ratio, which expects to be right and certifies nothing."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    return net, unsum.capture(net, torch.randn(4, 10), torch.tensor([0, 1, 1, 0]))


def crowd() -> tuple[nn.Module, unsum.Update]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    return net, unsum.capture(net, torch.randn(12, 8), torch.arange(12) % 3)


class Rows(nn.Module):
    """(B, 1) numbers of an item → one of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(1000, 8)
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.item(x[:, 0].long()))


def categories() -> tuple[nn.Module, unsum.Update]:
    """More samples than the head tells apart; the rows of the embedding name the values."""
    torch.manual_seed(1)
    net = Rows()
    return net, unsum.capture(net, torch.randint(1000, (64, 1)), torch.arange(64) % 10)


def epochs() -> tuple[nn.Module, unsum.Update]:
    """Twelve steps in three epochs: single samples are hidden, their labels are counted."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 10))
    y = torch.tensor([0] * 9 + [3] * 5 + [7, 8])
    how = {"learning_rate": 0.05, "local_steps": 12, "epochs": 3, "training_known": True}
    return net, unsum.capture_local(net, torch.randn(16, 20), y, **how)


def noisy() -> tuple[nn.Module, unsum.Update]:
    """An attack that applies, and expects to have got nothing: a failed attack proves nothing."""
    net, update = certain()
    return net, unsum.Noise(1.0)(update)


@pytest.mark.parametrize(
    ("case", "state", "code"),
    [
        (certain, "leaks", 1),
        (rows, "not decidable", 2),
        (crowd, "not decidable", 2),
        (categories, "leaks", 2),
        (epochs, "leaks", 2),
        (noisy, "not decidable", 2),
    ],
)
def test_a_report_and_many_updates_agree(case: Case, state: str, code: int, tmp_path: Path) -> None:
    net, update = case()
    file = tmp_path / "client.safetensors"
    update.save(file)
    report = unsum.audit(net, update=file)
    findings = unsum.attack_many(net, [file], processes=1)
    (finding,) = findings
    assert report.verdict.state == finding.state == state
    assert report.gate(0.2).exit_code == summary(findings, 0.2)["gate"]["exit_code"] == code
    verdict = report.verdict
    told = (verdict.level, verdict.headline, verdict.reason, verdict.read)
    assert told == (finding.level, finding.headline, finding.reason, finding.read)
    of_a_run = finding_of(1, "7", update, run_attack(net, update, AttackOptions(pictures=False)))
    assert (of_a_run.state, EXIT_CODES[result_of([of_a_run.leakage], 0.2)]) == (state, code)


def test_label_counts_reach_the_page_and_made_up_labels_no_file(tmp_path: Path) -> None:
    net, update = epochs()
    findings = unsum.attack_many(net, [unsum.Arrived("anna", update)], processes=1)
    (finding,) = findings
    assert finding.counted is not None
    assert finding.counted.samples is None  # shares, which are no list of samples
    assert (finding.label_counts, finding.batch_size, finding.distinct) == ({}, None, None)
    (row,) = csv.DictReader(write_csv(tmp_path / "updates.csv", findings).open(encoding="utf-8"))
    assert (row["state"], row["samples"], row["labels"]) == ("leaks", "", "")
    run = page_of(findings, LoadedModel(net, "a network", 0), tmp_path, 1.0)
    assert (run.leaking, run.counted, run.level) == (0, 1, "labels")
    assert run.audited[0].told.startswith("0: 56 % (")
    page = run.write_page(tmp_path).read_text("utf-8")
    assert "Labels of every client" in page


def test_labels_of_a_sample_for_every_step_are_none_where_nothing_vouches_for_them() -> None:
    net, update = epochs()
    told = replace(update, num_examples=16)
    (finding,) = unsum.attack_many(net, [told], processes=1)
    assert finding.label_counts == {0: 9, 3: 5, 7: 1, 8: 1}  # of all samples, in their intervals


def test_one_function_names_the_state() -> None:
    assert state_of([0.2]) == state_of([math.nan, 0.3]) == "leaks"
    assert state_of([0.19]) == "unproven"
    assert state_of([0.19, math.nan]) == state_of([math.nan]) == state_of([]) == "not decidable"


def test_one_function_is_every_gate() -> None:
    assert [
        result_of(leakages, 0.3) for leakages in ([0.3, 0.1], [0.31, math.nan], [0.1, math.nan], [])
    ] == [*("passed", "failed", "undecided", "undecided")]


def test_findings_of_earlier_versions_can_be_read() -> None:
    content = json.loads(json.dumps(ClientFinding(1, "7", "audited", leakage=1.0).to_dict()))
    del content["expected"]
    del content["level"], content["headline"], content["counted"]
    read = ClientFinding.from_dict(content)
    assert math.isnan(read.expected)
    assert (read.state, read.level, read.counted) == ("leaks", None, None)
