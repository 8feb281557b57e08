"""`unsum audit --updates FOLDER/`: a summary, a gate, a file of rows, and the same command going on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.many import network, update
from unsum.audit.finding import ClientFinding
from unsum.audit.many import Findings
from unsum.commands import main as cli
from unsum.commands.audit_many import summary

MODEL = "from support.many import network\n\n\ndef make():\n    made = network()\n    made.image_size = 8\n    return made\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    model = network()
    for number in range(3):
        Path(f"updates/round-{number}").mkdir(parents=True)
        update(number, model).save(Path(f"updates/round-{number}/anna.safetensors"))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    common = ("audit", "--updates", "updates", "--model", "model.py:make", "--processes", "1", *words)
    monkeypatch.setattr(sys, "argv", ["unsum", *common])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.mark.usefixtures("folder")
def test_a_folder_is_audited_gated_and_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("updates/round-0/torn.npz").write_bytes(b"nothing")
    assert run(monkeypatch, "--json", "--fail-above", "0.5") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["updates"], told["failed"]) == (4, 1)
    assert told["states"] == {"leaks": 3, "not decidable": 1}
    assert told["gate"]["reason"].startswith("3 of 4 updates leak more than 0.5")
    rows = {(f.round, f.client): f for f in Findings(told["findings"])}
    assert rows[2, "round-2/anna"].label_counts == {2: 1, 4: 2}
    assert "torn.npz" in rows[0, "round-0/torn"].reason
    assert run(monkeypatch) == 0  # the same folder, no --force: it goes on, and nobody asked for a gate
    assert "4 updates" in capsys.readouterr().out


def test_updates_of_which_nobody_knows_do_not_pass_the_gate() -> None:
    findings = Findings()
    findings.put(ClientFinding(1, "anna", "audited", leakage=0.1), "one")
    assert summary(findings, 0.5)["gate"]["exit_code"] == 0
    findings.put(ClientFinding(1, "bert", "failed", reason="torn"), "two")
    gate = summary(findings, 0.5)["gate"]
    assert (gate["exit_code"], "which is not safe" in gate["reason"]) == (2, True)
    findings.put(ClientFinding(1, "carl", "audited", leakage=0.6), "three")
    assert summary(findings, 0.5)["gate"]["exit_code"] == 1


@pytest.mark.usefixtures("folder")
def test_what_does_not_go_together(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--defense", "sign") == 2
    assert "--updates and --flower-run attack what was captured" in " ".join(capsys.readouterr().err.split())
