"""Networks that are no classifiers get an audit by what applies, or "not decidable" with what to do: never green."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsum
from support.command import Run, runner

SOURCE = """
import torch
from torch import nn


class UNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.down, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2)
        self.middle, self.up = nn.Conv2d(8, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        wide = self.down(x).relu()
        return self.out(torch.cat([wide, self.up(self.middle(self.pool(wide)).relu())], 1))


def unet(num_classes=4):
    torch.manual_seed(0)
    return UNet(num_classes)


class Recurrent(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.rnn, self.head = nn.LSTM(6, 16, batch_first=True), nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def recurrent(num_classes=10):
    torch.manual_seed(0)
    return Recurrent(num_classes)
"""


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.out(self.body(x).relu())}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    chance = np.random.default_rng(0)
    (tmp_path / "own.py").write_text(SOURCE)
    photos = chance.integers(256, size=(4, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "masks.npz", images=photos, labels=chance.integers(4, size=(4, 16, 16)))
    np.savez(tmp_path / "classes.npz", images=photos, labels=np.arange(4))
    sequences = chance.normal(size=(3, 5, 6)).astype(np.float32)
    np.savez(tmp_path / "sequences.npz", inputs=sequences, targets=np.array([9, 3, 1]))
    return tmp_path


def test_a_segmentation_network_is_not_decidable_from_the_command_line(folder: Path, run: Run) -> None:
    model, out = f"{folder / 'own.py'}:unet", folder / "report"
    done = run("audit", "--model", model, "--data", str(folder / "masks.npz"), "--out", str(out), "--fail-above", "0.2")
    assert done.code == 2
    assert "Not decidable" in done.out
    said = str(json.loads((out / "result.json").read_text())["verdict"])
    assert "the network has no linear head to start from (its output comes from 'out', a Conv2d)" in said
    assert "protect them by noise with a proven bound (dp)" in said
    content = json.loads((out / "result.json").read_text())
    (headline, first) = (content["verdict"]["headline"], content["verdict"]["details"][0])
    assert headline.endswith("(its output comes from 'out', a Conv2d).")  # and what to do is no part of it
    assert first.startswith("Attacks on such networks are not complete: treat its updates as the samples themselves,")
    assert content["setting"]["batch_size"] == 4  # its client was played, and is no captured one
    assert content["setting"]["provenance"]["privacy"] == "No ε: nothing clips, and nothing adds noise."
    page = (out / "report.html").read_text("utf-8")
    assert "captured elsewhere" not in page
    assert "The truth is not known here" not in page
    assert "simulate the same round" not in page
    refused = run("audit", "--model", model, "--data", str(folder / "classes.npz"), "--batch", "4")
    assert refused.code == 2
    assert "What UNet minimizes is not known" in refused.err
    assert "Traceback" not in refused.err


def test_an_update_of_such_a_network_that_was_captured(folder: Path) -> None:
    torch.manual_seed(0)
    model = Segmenter()
    targets = torch.randint(4, (2, 8, 8))
    loss = nn.functional.cross_entropy(model(torch.rand(2, 3, 8, 8))["out"], targets)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    update = unsum.Update(dict(zip(dict(model.named_parameters()), gradients, strict=True)))
    audit = unsum.audit(model, update=update)
    assert audit.verdict.level == "open"
    assert "no linear head to start from" in audit.undecided


def test_a_loss_of_the_users_and_boxes_are_taken_in_python() -> None:
    audit = unsum.audit(Segmenter(), (torch.rand(2, 3, 8, 8), torch.rand(2, 4, 8, 8)), loss=_squares)
    assert audit.verdict.level == "open"
    assert audit.leakages == []


def _squares(output: dict[str, Tensor], targets: Tensor) -> Tensor:
    return (output["out"] - targets).square().mean()


def test_numbers_to_predict_ask_for_the_loss_and_sequences_are_read(folder: Path) -> None:
    audit = unsum.audit(f"{folder / 'own.py'}:recurrent", folder / "sequences.npz", classes=10)
    assert audit.leak.exact
    assert min(audit.leakages) > 0.99
    numbers = torch.rand(2, 12), torch.rand(2)
    network = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.raises(unsum.UnsumError, match="say what the client minimizes"):
        unsum.audit(network, numbers)
    assert unsum.audit(network, numbers, loss="mse").verdict.level
