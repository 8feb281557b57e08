"""One update has one verdict and one exit code, whoever looks at it: a report, many updates at
once, a federated run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import unsum
from unsum.attack.chain import run_attack
from unsum.attack.options import AttackOptions
from unsum.audit.finding import ClientFinding, finding_of
from unsum.audit.gate import EXIT_CODES, result_of
from unsum.audit.verdict import state_of
from unsum.commands.audit_many import summary

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
    assert report.verdict.reason == finding.reason
    of_a_run = finding_of(1, "7", update, run_attack(net, update, AttackOptions(pictures=False)))
    assert (of_a_run.state, EXIT_CODES[result_of([of_a_run.leakage], 0.2)]) == (state, code)


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
    assert math.isnan(ClientFinding.from_dict(content).expected)
