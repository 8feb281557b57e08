"""The quickstart's journey: three lines in the server, a training, and one page of what leaked over
time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import quickstart
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg
from messages import Grid, answers

from unsum.integrations.flower_store import StoreUpdates


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart")
    quickstart.play(lambda strategy: StoreUpdates(strategy, folder / "seen"))
    return folder


def audit(folder: Path, *more: str) -> tuple[str, dict]:
    model = f"{Path(quickstart.__file__)}:Net"
    command = [
        *(
            sys.executable,
            "-m",
            "unsum",
            "audit",
            "--flower-run",
            "seen",
            "--model",
            model,
            "--momentum",
            "0.9",
        ),
        *("--batch", "32", "--time-limit", "1", "--out", "report", *more),
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "report" / "run.json").read_text("utf-8"))


def test_the_quickstart_ends_in_one_page_that_tells_every_clients_labels(folder: Path) -> None:
    out, content = audit(folder)
    rows = {(row["round"], int(row["client"]) - 1000): row for row in content["updates"]}
    assert rows.keys() == {(number, client) for number in (1, 2) for client in range(3)}
    held = []
    for (_, client), row in rows.items():
        true = torch.bincount(quickstart.private(client)[1], minlength=quickstart.CLASSES).tolist()
        counted = row["counted"]
        assert (row["num_examples"], counted["samples"], counted["steps"]) == (320, 320, 10)
        # the class that it has most of
        assert counted["counts"].index(max(counted["counts"])) == client
        # nobody knows, or it leaks; never "0 %"
        assert row["leakage"] is None or row["leakage"] > 0.2
        held += [
            low <= n <= high
            for n, low, high in zip(true, counted["low"], counted["high"], strict=True)
        ]
    assert sum(held) >= 0.85 * len(held)  # 90 of 100 in the mean
    page = (folder / "report" / "run.html").read_text("utf-8")
    assert page.count('<rect class="bar"') == 3 * quickstart.CLASSES
    assert "Labels of every client" in page
    assert "What leaked, over time" in out


def test_training_is_the_same_with_and_without_and_a_full_disk_breaks_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("no folder can be made below this")
    model, config = quickstart.Net(), ConfigRecord({"lr": 0.01})
    results = []
    for strategy in (
        FedAvg(),
        StoreUpdates(FedAvg(), tmp_path / "seen"),
        StoreUpdates(FedAvg(), tmp_path / "file"),
    ):
        messages = list(
            strategy.configure_train(1, ArrayRecord(model.state_dict()), config, Grid(2))
        )
        replies = answers(
            messages, lambda _place, sent: {name: value + 1 for name, value in sent.items()}
        )
        arrays, _ = strategy.aggregate_train(1, replies)
        results.append(arrays.to_numpy_ndarrays())
    for first, second, third in zip(*results, strict=True):
        assert (first == second).all()
        assert (first == third).all()
    assert {path.name for path in (tmp_path / "seen" / "round-1").iterdir()} == {
        "sent.safetensors",
        "client-1000.safetensors",
        "client-1001.safetensors",
    }
