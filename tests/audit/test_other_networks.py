"""Networks that are no classifiers get an audit by what applies, or "not decidable" with what to
do: never green."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsum
from support.command import Run, runner
from unsum.audit.gate_files import sentence
from unsum.data.batch import embedded_batch

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


def test_a_segmentation_network_is_not_decidable_from_the_command_line(
    folder: Path, run: Run
) -> None:
    model, out = f"{folder / 'own.py'}:unet", folder / "report"
    done = run(
        "audit",
        "--model",
        model,
        "--data",
        str(folder / "masks.npz"),
        "--out",
        str(out),
        "--fail-above",
        "0.2",
    )
    assert done.code == 2
    assert "Not decidable" in done.out
    said = str(json.loads((out / "result.json").read_text())["verdict"])
    assert (
        "the network has no linear head to start from (its output comes from 'out', a Conv2d)"
        in said
    )
    assert "protect them by noise with a proven bound (dp)" in said
    content = json.loads((out / "result.json").read_text())
    assert "matching, targets granted" in {one["attack"] for one in content["tried"]}
    (headline, first) = (content["verdict"]["headline"], content["verdict"]["details"][0])
    # and what to do is no part of it
    assert headline.endswith("(its output comes from 'out', a Conv2d).")
    assert first.startswith(
        "Attacks on such networks are not complete: treat its updates as the samples themselves,"
    )
    assert content["setting"]["batch_size"] == 4  # its client was played, and is no captured one
    assert (
        content["setting"]["provenance"]["privacy"]
        == "No ε: nothing clips, and nothing adds noise."
    )
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
    assert audit.tried[-1].remark.startswith(
        "Gradient matching was not tried: the loss is not known"
    )
    assert "client=unsum.ClientTraining(loss=function)" in audit.tried[-1].remark


def test_a_loss_of_the_users_and_boxes_are_taken_in_python() -> None:
    """Five samples are too many to be matched, so that nothing is known; a ceiling there is all the
    same."""
    audit = unsum.audit(
        Segmenter(), (torch.rand(5, 3, 8, 8), torch.rand(5, 4, 8, 8)), loss=_squares
    )
    assert audit.verdict.level == "open"
    assert [math.isnan(value) for value in audit.leakages] == [True] * 5
    assert audit.ceilings == [1.0] * 5
    assert "5 pictures take long" in audit.tried[-1].remark


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


def _photos(count: int = 1, side: int = 8) -> tuple[Tensor, Tensor]:
    """Photos and their masks, four classes by brightness."""
    x = embedded_batch(8, image_size=side).images[1 : 1 + count]
    return x, (x.mean(1) * 4).long().clamp(0, 3)


def _segmenter() -> Segmenter:
    torch.manual_seed(0)
    return Segmenter()


def test_a_photo_that_matching_reads_leaks(tmp_path: Path) -> None:
    x, masks = _photos()
    audit = unsum.audit(_segmenter(), (x, masks), ceiling=False)
    assert audit.verdict.state == "leaks"
    assert audit.by == ["matching, targets granted"]
    assert audit.leakages[0] > 0.6
    assert audit.rows[0].shares.read == "sample"
    assert (audit.rows[0].label, audit.rows[0].found_label) == ("8 × 8 class numbers", "granted")
    assert audit.granted[1].startswith("The client's targets (masks, numbers to predict)")
    held = audit.gate(0.2)
    assert held.exit_code == 1
    assert sentence(audit.rows[0]).endswith("of the picture leaked.")  # no label is right or wrong
    page = audit.write(tmp_path / "report").read_text()
    for wrong in (
        "labels were recovered",
        "Found label",
        "of the features: the attack read",
        "captured elsewhere",
        "--sweep",
    ):
        assert wrong not in page
    assert "Target found" in page
    content = json.loads((tmp_path / "report" / "result.json").read_text())
    assert content["samples"][0]["label_correct"] is None
    assert content["setting"]["provenance"]["data_sha256"]


def test_noise_that_drowns_the_gradient_is_never_called_low_because_a_search_failed() -> None:
    x, masks = _photos()
    audit = unsum.audit(_segmenter(), (x, masks), defenses=unsum.Noise(100.0), ceiling=False)
    assert audit.verdict.level == "open"
    assert math.isnan(audit.leakages[0])
    assert audit.gate(0.2).exit_code == 2
    proven = unsum.audit(_segmenter(), (x, masks), defenses=unsum.Noise(100.0))
    assert proven.verdict.level == "protected"


def test_losses_by_name_are_of_other_networks_too() -> None:
    """The mean of squares over all pixels, as a function of the user's has it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    x = _photos()[0]
    data = x, x.mean(1, keepdim=True)
    named = unsum.audit(model, data, loss="mse", ceiling=False, time_limit=0.1)
    own = unsum.audit(model, data, loss=nn.functional.mse_loss, ceiling=False, time_limit=0.1)
    assert named.setting.provenance.update_sha256 == own.setting.provenance.update_sha256
    assert named.setting.loss == "mse"
    with pytest.raises(
        unsum.UnsumError, match=r"'focal.*' is known of classifiers with a linear head alone"
    ):
        unsum.audit(model, data, loss="focal")
    with pytest.raises(unsum.UnsumError, match="name it"):
        unsum.audit(model, data)


def test_inputs_that_are_no_pictures_are_not_matched() -> None:
    x, masks = _photos()
    audit = unsum.audit(_segmenter(), (5 * x - 2, masks), ceiling=False)
    assert "it draws pictures with values from 0 to 1" in audit.tried[-1].remark
    assert audit.verdict.level == "open"


def test_numbers_to_predict_are_no_labels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 1))
    audit = unsum.audit(model, (_photos()[0], torch.tensor([0.3])), loss="mse", ceiling=False)
    assert audit.rows[0].label == "0.3"
    page = audit.write(tmp_path / "report").read_text()
    assert "a guess has" not in page
    assert "Found label" not in page
