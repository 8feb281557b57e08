"""A client's weights before and after, from the training to the report: what a user of FedAvg has
in hand."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from support.command import Run, runner

NET = """
from torch import nn
def net(num_classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, num_classes))
    model.image_size = 4
    return model
"""
HOW = ["--lr", "0.05", "--momentum", "0.9", "--weight-decay", "0.001"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """In a folder with a model, and its weights before and after two local steps."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 40))
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9, weight_decay=0.001)
    inputs, labels = 2 * torch.randn(4, 48), torch.tensor([3, 17, 8, 29])
    for batch in (slice(0, 2), slice(2, 4)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    for name, weights in (("before", model), ("after", trained)):
        np.savez(
            f"{name}.npz", **{key: value.numpy() for key, value in weights.state_dict().items()}
        )
    return runner(monkeypatch, capsys)


def test_two_steps_between_before_and_after_are_followed(run: Run) -> None:
    pair = ["--model", "net.py:net", "--before", "before.npz", "--after", "after.npz"]
    result = run(
        "audit", *pair, *HOW, "--local-steps", "2", "--batch", "4", "--batch-size-known", "--json"
    )
    assert result.code == 0, result.err
    content = json.loads(result.out)
    assert content["attack"]["method"] == "local-steps"
    assert sorted(row["found_label"] for row in content["samples"]) == [
        "class 17",
        "class 29",
        "class 3",
        "class 8",
    ]
    assert content["setting"]["training"]["momentum"] == 0.9
    assert any(
        "2 local steps of SGD at a learning rate of 0.05" in sentence
        for sentence in content["granted"]
    )
    one = run("audit", *pair, "--epochs", "2", "--json", "--force")
    assert (one.code, "--local-steps" in one.err) == (2, True)


@pytest.mark.long
def test_the_same_is_simulated_with_the_truth(run: Run) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 4, 4, 3), dtype=np.uint8)
    np.savez("photos.npz", images=images, labels=np.arange(4))
    simulated = ["--model", "net.py:net", "--classes", "40", "--data", "photos.npz", "--batch", "4"]
    result = run(
        "audit", *simulated, *HOW, "--local-steps", "2", "--epochs", "2", "--no-compare", "--json"
    )
    assert result.code == 0, result.err
    content = json.loads(result.out)
    declared = content["setting"]["training"]
    assert (declared["steps"], declared["epochs"], declared["weight_decay"]) == (2, 2, 0.001)
    assert content["truth_known"] is True
    assert "local steps" in " ".join(content["granted"])
