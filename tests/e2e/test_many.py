"""`unsum audit --updates FOLDER/`: a summary, a gate, a file of rows, and the same command going
on."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch

from support.many import network, update
from unsum.audit.finding import ClientFinding
from unsum.audit.many import Findings
from unsum.audit.many.table import write_csv
from unsum.audit.provenance import fingerprint
from unsum.commands import audit_many
from unsum.commands import main as cli
from unsum.commands.audit_many import summary
from unsum.models.load import LoadedModel

MODEL = (
    "from support.many import network\n\n\ndef make():\n    made = network()\n    made.image_size "
    "= 8\n    return made\n"
)


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
    common = (
        "audit",
        "--updates",
        "updates",
        "--model",
        "model.py:make",
        "--processes",
        "1",
        *words,
    )
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
    page = Path(told["report"]).read_text("utf-8")
    assert "3 of 4 updates give samples away." in page
    assert "privacy audit of captured updates" in page
    assert "round-2/anna" in page
    assert fingerprint(network().state_dict()) in page
    with Path(told["csv"]).open(newline="", encoding="utf-8") as file:
        lines = {line["client"]: line for line in csv.DictReader(file)}
    assert lines.keys() == {"round-0/anna", "round-0/torn", "round-1/anna", "round-2/anna"}
    whole = lines["round-2/anna"]
    assert (whole["round"], whole["state"], whole["certified"], whole["labels"]) == (
        "2",
        "leaks",
        "yes",
        "2:1 4:2",
    )
    assert float(whole["leakage"]) > 0.999
    assert (lines["round-0/torn"]["leakage"], lines["round-0/torn"]["state"]) == (
        "",
        "not decidable",
    )
    # the same folder, no --force: it goes on, and nobody asked for a gate
    assert run(monkeypatch) == 0
    assert "4 updates" in capsys.readouterr().out


@pytest.mark.usefixtures("folder")
def test_samples_of_the_kind_give_a_ceiling_and_never_green(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of k rounds like this one, squared distances are k times as large."""
    rows = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    names = [f"c{i}" for i in range(64)]
    lines = [",".join([*names, "kind"])]
    lines += [
        ",".join([*(f"{value:.6f}" for value in row), f"k{i}"])
        for i, row in enumerate(rows.tolist())
    ]
    Path("kind.csv").write_text("\n".join(lines) + "\n")
    asked = (
        "--data",
        "kind.csv",
        "--target",
        "kind",
        "--classes",
        "20",
        "--defense",
        "noise:1",
        "--batch",
        "3",
    )
    assert run(monkeypatch, "--json", *asked) == 0
    told = json.loads(capsys.readouterr().out)
    ceilings = [one["ceiling"] for one in told["ceilings"]]
    assert len(ceilings) == 3  # rounds 0 to 2
    assert 0 < ceilings[0] < ceilings[1] < ceilings[2] < 1
    with Path(told["csv"]).open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [float(row["ceiling"]) for row in found] == ceilings
    for row in found:
        content = Path(f"updates/{row['client']}.safetensors").read_bytes()
        assert row["sha256"] == hashlib.sha256(content).hexdigest()
    page = Path(told["report"]).read_text("utf-8")
    assert page.count('class="interval"') == 3
    assert '<section class="verdict severe"' in page
    assert run(monkeypatch) == 0  # again, without data: the rows are there, and no ceiling is
    page = Path(told["report"]).read_text("utf-8")
    assert "nobody can play a client without data" in page
    assert 'class="interval"' not in page


def test_a_name_is_no_formula_and_stays_on_its_line(tmp_path: Path) -> None:
    names = ["=1+1", "@SUM(A1)", "-2", "+3", "a\nb", 'say "hi", twice', "plain"]
    write_csv(
        tmp_path / "t.csv", [ClientFinding(1, name, "audited", leakage=0.25) for name in names]
    )
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["client"] for line in lines] == [
        "'=1+1",
        "'@SUM(A1)",
        "'-2",
        "'+3",
        "a b",
        'say "hi", twice',
        "plain",
    ]
    assert {line["leakage"] for line in lines} == {"0.25"}
    assert {line["predicted_error"] for line in lines} == {""}


def test_a_page_of_very_many_shows_those_that_leak_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_many, "_ON_PAGE", 2)
    findings = Findings()
    for number in range(5):
        findings.put(
            ClientFinding(0, f"client-{number}", "audited", leakage=number / 10), str(number)
        )
    page = audit_many._page_of(findings, LoadedModel(network(), "net", 8), Path("updates"), 1.0)
    assert [one.finding.client for one in page.audited] == ["client-4", "client-3"]
    assert (
        "This page is of 2 of 5 updates, those that leak most; the CSV beside it has all."
        in page.sentences
    )


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
def test_what_does_not_go_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--defense", "sign") == 2
    assert "--defense is what its clients declare" in " ".join(capsys.readouterr().err.split())
    assert run(monkeypatch, "--sweep", "noise") == 2
    assert "--updates and --flower-run attack what was captured" in " ".join(
        capsys.readouterr().err.split()
    )
