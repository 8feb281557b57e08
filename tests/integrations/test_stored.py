"""A stored run, audited client by client and round by round; rounds that are missing, and files that are damaged."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from support.command import Run, runner
from unsum.errors import UnsumError
from unsum.integrations.stored import gaps, replies, store_back, store_sent, trained_as
from unsum.local_training import LocalTraining

RATE, CLASSES = 0.05, 6
run = pytest.fixture(runner)

MODEL = """
from torch import nn


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 6))
"""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, CLASSES)
    )


def trained(model: nn.Module, x: Tensor, y: Tensor, size: int) -> dict[str, Tensor]:
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=RATE)
    for some in torch.randperm(len(x)).split(size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(local(x[some]), y[some]).backward()
        optimizer.step()
    return local.state_dict()


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """Client 7 takes one step of 4 samples, client 8 twenty steps of 4; rounds 1 and 3, and the true labels of both."""
    folder, model = tmp_path / "seen", network()
    (tmp_path / "net.py").write_text(MODEL)
    x, y = torch.rand(80, 3, 8, 8), torch.randint(0, CLASSES, (80,))
    for number in (1, 3):
        store_sent(folder, number, model.state_dict(), {"lr": RATE, "name": "x", "odd": [1]})
        store_back(folder, number, trained(model, x[:4], y[:4], 4), "7", 4)
        store_back(folder, number, trained(model, x, y, 4), "8", 80)
    return folder, {"7": y[:4], "8": y}


def test_what_is_not_declared_is_taken_from_what_was_sent() -> None:
    known = LocalTraining(batch_size=32, momentum=0.9, epochs=2)
    told = trained_as(known, {"lr": 0.1, "learning-rate": 7}, 100)
    assert (told.learning_rate, told.steps, told.momentum) == (0.1, 8, 0.9)
    assert trained_as(LocalTraining(0.5, 3), {"lr": 0.1}, 100) == LocalTraining(0.5, 3)


def test_every_client_and_round_stands_on_one_page(
    stored: tuple[Path, dict[str, Tensor]], run: Run, tmp_path: Path
) -> None:
    folder, labels = stored
    (folder / "round-3" / "client-9.safetensors").write_bytes(b"no tensors")
    model, out = f"{tmp_path / 'net.py'}:network", tmp_path / "out"
    done = run(
        "audit", "--flower-run", str(folder), "--model", model, "--batch", "4", "--time-limit", "3", "--out", str(out)
    )
    assert done.code == 0, done.err
    content = json.loads((out / "run.json").read_text("utf-8"))
    rows = {(row["round"], row["client"]): row for row in content["updates"]}
    assert rows.keys() == {(1, "7"), (1, "8"), (3, "7"), (3, "8"), (3, "9")}
    for number in (1, 3):
        one = rows[number, "7"]
        assert one["exact"]
        assert one["label_counts"] == {str(c): n for c, n in enumerate(torch.bincount(labels["7"]).tolist()) if n}
        many = rows[number, "8"]
        assert not many["exact"]
        assert many["leakage"] is None  # nobody knows, and that is never 0
        true = torch.bincount(labels["8"], minlength=CLASSES)
        counted = many["counted"]
        assert counted["samples"] == 80
        assert (
            sum(low <= n <= high for n, low, high in zip(true.tolist(), counted["low"], counted["high"], strict=True))
            >= 5
        )
        assert sum(abs(n - m) for n, m in zip(true.tolist(), counted["counts"], strict=True)) <= 8
    assert "client-9.safetensors" in rows[3, "9"]["reason"]
    assert content["headline"] == "2 of 5 updates give samples away."
    assert any("Round 2 is missing" in sentence for sentence in content["sentences"])
    page = (out / "run.html").read_text("utf-8")
    certain, unknown = (
        f'<circle class="{kind}-dot" cx="{{}}" cy="{height}" r="5"/>'
        for kind, height in (("worst", "34.0"), ("unknown", "262"))
    )
    for place in (104.0, 716.0):  # rounds 1 and 3: client 7 at 100 %, client 8 where nobody knows
        assert certain.format(place) in page
        assert unknown.format(place) in page
    assert "2 missing" in page
    assert page.count('<rect class="bar"') == CLASSES


def test_a_folder_without_rounds_or_weights_is_a_sentence(
    stored: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    folder, _ = stored
    with pytest.raises(UnsumError, match=r"There is no folder"):
        list(replies(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsumError, match=r"holds no round-1.*StoreUpdates"):
        list(replies(tmp_path / "empty"))
    (folder / "round-3" / "sent.safetensors").unlink()
    last = list(replies(folder))[-1].audited(
        network(), LocalTraining(RATE, 1), "exact", train=True, seed=0, time_limit=3
    )
    assert last.finding.outcome == "failed"
    assert "round 3 sent out are missing" in last.finding.reason
    for path in (folder / "round-1").glob("client-*"):
        path.unlink()
    assert gaps(folder) == [
        "Round 2 is missing from the folder; the others are audited, and nothing is known of these.",
        "Round 1 is without any client's answer.",
    ]
