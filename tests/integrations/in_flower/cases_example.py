"""The example project in Flower's simulation engine, as its README starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3] / "examples" / "flower-audit"


def simulate(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "flower_audit.simulate", "--clients", "2", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env=_environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(PROJECT)}


def test_the_example_trains_audits_and_ends_in_a_report(tmp_path: Path) -> None:
    from flower_audit_labels import labels_of

    from unsum.integrations.stored import replies
    from unsum.local_training import LocalTraining

    sys.path.insert(0, str(PROJECT))
    from flower_audit.task import network

    out = simulate(tmp_path, "--rounds", "2")
    lines = [
        json.loads(line)
        for line in (tmp_path / "flower-audit-report" / "leakage.jsonl").read_text().splitlines()
    ]
    assert [line["round"] for line in lines] == [1, 1, 2, 2]
    # Whether an answer is called exact is another question: the batch size is not told here.
    assert all(line["batch_size"] == 8 and line["statistics_layers"] == 3 for line in lines)
    for number in (1, 2):  # which node holds which pictures, the engine draws
        found = [line["label_counts"] for line in lines if line["round"] == number]
        assert sorted(map(str, found)) == sorted(
            str(labels_of(client, number)) for client in (0, 1)
        )
    assert "The worst was client" in out
    # what StoreUpdates left gives the same again
    kept = list(replies(tmp_path / "flower-audit-report" / "seen"))
    assert [(one.round, one.client) for one in kept] == sorted(
        (line["round"], line["client"]) for line in lines
    )
    again = kept[0].audited(
        network(), LocalTraining(batch_size=8), None, train=True, seed=0, time_limit=20
    )
    first = next(
        line for line in lines if (line["round"], line["client"]) == (kept[0].round, kept[0].client)
    )
    assert {str(label): count for label, count in again.finding.label_counts.items()} == first[
        "label_counts"
    ]
    assert "<html" in (tmp_path / "flower-audit-report" / "worst" / "report.html").read_text(
        "utf-8"
    )


@pytest.mark.parametrize("name", ["serverapp", "clientapp"])
def test_the_project_names_apps_that_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import tomllib

    monkeypatch.syspath_prepend(PROJECT)
    app = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"][
        "components"
    ][name]
    module, _, attribute = app.partition(":")
    assert type(getattr(importlib.import_module(module), attribute)).__name__.lower() == name
