"""A whole simulation on Ray: every client's labels against its own log, one process killed in the middle, one update held back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLIENTS, ROUNDS, KILLED_IN = 3, 3, 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """Runs `killed_simulation.py` once; the audits' findings, and what every client wrote down itself."""
    folder = tmp_path_factory.mktemp("killed")
    paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "killed_simulation.py"), str(folder), str(CLIENTS), str(ROUNDS), str(KILLED_IN)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=500,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return {
        "audit": lines(folder / "audit" / "leakage.jsonl"),
        "clients": [line for file in sorted(folder.glob("client-*.jsonl")) for line in lines(file)],
        "history": lines(folder / "history.jsonl"),
    }


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def said(run: dict[str, list[dict]], event: str) -> list[dict]:
    return [line for line in run["clients"] if line["event"] == event]


def test_every_audited_client_and_round_gives_the_labels_that_the_client_logged(run) -> None:
    logged = {(line["round"], line["client"]): line["labels"] for line in said(run, "sent")}
    audited = {(line["round"], line["client"]): line for line in run["audit"]}
    assert audited.keys() == logged.keys()  # whoever answered was audited, and nobody else
    for key, finding in audited.items():
        assert finding["outcome"] == "audited"
        assert finding["exact"]
        assert finding["label_counts"] == {str(k): n for k, n in Counter(logged[key]).items()}


def test_a_client_whose_process_is_killed_is_missed_and_training_goes_on(run) -> None:
    (death,) = said(run, "about to die")
    assert death["round"] == KILLED_IN
    assert (death["round"], death["client"]) not in {(line["round"], line["client"]) for line in run["audit"]}
    assert [line["round"] for line in run["history"]] == list(range(1, ROUNDS + 1))
    for line in run["history"]:  # one update is held back in the last round, one client dies in the middle
        expected = CLIENTS - (line["round"] in (KILLED_IN, ROUNDS))
        assert line["leak-audited"] == line["leak-exact"] == expected
    assert any(line["round"] > KILLED_IN for line in run["audit"])


def test_the_guard_holds_a_leaking_update_back(run) -> None:
    (kept,) = said(run, "held back")
    assert kept["round"] == ROUNDS
    assert "expects a leakage of 1.00" in kept["reason"]
    assert (kept["round"], kept["client"]) not in {(line["round"], line["client"]) for line in run["audit"]}
