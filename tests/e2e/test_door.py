"""The first commands of a newcomer: a tutorial's network, photos in folders, trained weights, and a
model that raises."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support.active_photos import cut
from support.command import Result, Run, runner
from support.long import long
from unsum.audit.sweep import task
from unsum.commands.stages import OUT

LENET = """
import torch
from torch import nn
import torch.nn.functional as F

from layers import convolutions

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = convolutions()
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)

def make():
    return Net()
"""
NEIGHBOR = """
from torch import nn

def convolutions():
    return nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
"""
RAISING = """
from torch import nn

class Net(nn.Module):
    image_size = 32

    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(3072, num_classes)

    def forward(self, x):
        if self.training:
            raise ValueError("no training here")
        return self.head(x.flatten(1))

def leave():
    raise SystemExit(1)
"""


@pytest.fixture
def unsum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `unsum …` beside a tutorial's network and its neighbor."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "layers", raising=False)
    Path("lenet.py").write_text(LENET)
    Path("layers.py").write_text(NEIGHBOR)
    Path("raising.py").write_text(RAISING)

    return runner(monkeypatch, capsys)


def photos(
    folder: str, count: int, side: int = 32, classes: tuple[str, ...] = ("cat", "dog", "ship")
) -> None:
    for place, image in enumerate(cut(count)):
        path = (
            Path(folder)
            / classes[place % len(classes)]
            / f"Brücke_{place:02d}_with_a_long_name.png"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = (255 * image).round().byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize((side, side)).save(path)


TUTORIAL = ["--model", "lenet.py:make", "--no-compare"]


@pytest.mark.parametrize(
    ("data", "batch"),
    [
        ("photos", 8),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((None, 8), ("photos", 32))),
    ],
)
def test_the_tutorial_network_takes_photos_of_its_own_size(
    unsum: Callable[..., Result], data: str | None, batch: int
) -> None:
    photos("photos", batch)
    result = unsum(
        "audit",
        *TUTORIAL,
        "--batch",
        str(batch),
        *([] if data is None else ["--data", data]),
        "--json",
    )
    assert result.code == 0, result.err
    setting = json.loads(result.out)["setting"]
    # which is the only side that it takes
    assert setting["model"] == "make of lenet.py, random weights, 32²"
    assert (setting["batch_size"], setting["classes"]) == (batch, 10)
    assert "resized" not in result.err
    again = unsum("audit", *TUTORIAL, "--attack", "fgla", "--batch", "4")
    assert again.code == 0, again.err  # the folder of an earlier report of ours


def test_a_resize_is_the_first_line_and_names_stay_whole(
    unsum: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos("photos", 6, side=48)
    monkeypatch.setattr(OUT, "width", 80)
    result = unsum("audit", *TUTORIAL, "--data", "photos", "--batch", "4", "--attack", "fgla")
    assert result.code == 0, result.err
    assert result.out.startswith("Photos of 48×48 are resized to 32×32, which the model takes")
    assert "…" not in result.out
    assert "Brücke_" in Path("unsum-report/result.json").read_text("utf-8")
    refused = unsum("audit", *TUTORIAL, "--data", "photos", "--batch", "4", "--image-size", "48")
    assert refused.code == 2
    assert "make of lenet.py does not take photos of 48²: RuntimeError: " in refused.err


def test_a_model_that_takes_any_size_gets_the_photos_as_they_are(
    unsum: Callable[..., Result],
) -> None:
    photos("photos", 6, side=48)
    Path("any.py").write_text(
        "from torch import nn\n"
        "def net(num_classes):\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.AdaptiveAvgPool2d(4), nn.Flatten(), "
        "nn.Linear(128, num_classes))\n"
        "def gray(num_classes):\n"
        "    return nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.AdaptiveAvgPool2d(4), nn.Flatten(), "
        "nn.Linear(128, num_classes))\n"
    )
    chosen = ["--data", "photos", "--batch", "4", "--attack", "fgla", "--json", "--no-compare"]
    own = unsum("audit", "--model", "any.py:net", *chosen)
    assert json.loads(own.out)["setting"]["model"].endswith("48²")
    asked = unsum("audit", "--model", "any.py:net", *chosen, "--image-size", "32")
    assert json.loads(asked.out)["setting"]["model"].endswith("32²")
    assert "Photos of 48×48 are resized to 32×32" in asked.err
    gray = unsum("audit", "--model", "any.py:gray", *chosen)
    assert gray.code == 2
    assert "reads 1 channels, and photos have 3" in gray.err


def test_classes_are_mapped_to_a_trained_head_or_refused(unsum: Callable[..., Result]) -> None:
    photos("photos", 6)
    from unsum.models import load_model

    torch.save(load_model("lenet.py:make", classes=10, seed=5).model.state_dict(), "trained.pt")
    trained = [*TUTORIAL, "--weights", "trained.pt", "--batch", "6", "--attack", "fgla", "--json"]
    refused = unsum("audit", *trained, "--data", "photos")
    assert refused.code == 2
    assert (
        "The model's trained head has 10 classes and the data have 3; say which is which with "
        "--classes-from"
    ) in refused.err

    names = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    Path("classes.txt").write_text("\n".join(names))
    mapped = json.loads(
        unsum("audit", *trained, "--data", "photos", "--classes-from", "classes.txt").out
    )
    assert mapped["setting"]["model"] == "make of lenet.py, weights of trained.pt, 32²"
    found = {row["found_label"] for row in mapped["samples"] if row["found_label"]}
    assert {row["label"] for row in mapped["samples"]} == {"cat", "dog", "ship"}
    assert found <= set(names)
    assert mapped["scores"]["label_correct"] > 0  # counted as the head counts

    photos("numbers", 6, classes=("3", "5", "8"))
    numbered = json.loads(unsum("audit", *trained, "--data", "numbers").out)
    assert {row["label"] for row in numbered["samples"]} == {"3", "5", "8"}
    for name in names:
        Path("training", name).mkdir(parents=True)
    wrong = unsum("audit", *trained, "--data", "numbers", "--classes-from", "training")
    assert "The data have a class '3', and --classes-from does not name it" in wrong.err
    fresh = unsum(
        "audit", "--model", "lenet.py:make", *trained[3:], "--data", "photos", "--fresh-head"
    )
    assert fresh.code == 0, fresh.err
    assert "under a fresh head" in fresh.out


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            "raising.py:Net",
            "The model's own code failed in 'raising.py', line 13 (ValueError: no training here)",
        ),
        ("raising.py:leave", "'leave' of 'raising.py' failed: SystemExit: 1"),
    ],
)
def test_a_model_that_raises_is_one_sentence_and_no_leak(
    unsum: Callable[..., Result], model: str, sentence: str
) -> None:
    result = unsum("audit", "--model", model, "--fail-above", "0.2")
    assert result.code == 2
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert "Traceback" in unsum("audit", "--model", model, "--verbose").err
    assert not Path("unsum-report").exists()


@pytest.mark.parametrize("steps", [1, *long(3)])
def test_the_tutorials_weights_before_and_after_never_pass_unread(
    unsum: Callable[..., Result], steps: int
) -> None:
    """A client of a framework's quickstart: SGD with momentum, its state dicts as NumPy files, 8
    photos a step."""
    from unsum.models import load_model

    model = load_model("lenet.py:make", classes=10, seed=5).model
    np.savez(
        "before.npz", **{name: value.numpy().copy() for name, value in model.state_dict().items()}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.nn.functional.interpolate(cut(8 * steps), 32)
    for part in images.split(8):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(part), torch.arange(8) % 4).backward()
        optimizer.step()
    np.savez("after.npz", **{name: value.numpy() for name, value in model.state_dict().items()})
    how = [
        "--lr",
        "0.01",
        *(["--local-steps", str(steps), "--momentum", "0.9"] if steps > 1 else []),
    ]
    pair = ["--model", "lenet.py:make", "--before", "before.npz", "--after", "after.npz", *how]
    result = unsum("audit", *pair, "--fail-above", "0.2", "--json")
    content = json.loads(result.out)
    assert content["verdict"]["state"] in ("leaks", "not decidable")
    assert result.code == (1 if content["verdict"]["state"] == "leaks" else 2)
    assert "weights of before.npz" in content["setting"]["model"]
    assert (content["setting"]["training"] or {}).get("steps") == (steps if steps > 1 else None)
    # the weights' rounding is no noise
    assert "was added" not in " ".join(content["attack"]["notes"])


def test_a_sweep_to_ruin_is_not_green(
    unsum: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ROUNDS": 3, "RUNS": 1}.items():  # enough to learn a little
        monkeypatch.setattr(task, name, value)
    photos("photos", 6)
    quick = ["--data", "photos", "--batch", "3", "--attack", "fgla", "--classes", "10"]
    result = unsum("audit", "--model", "lenet.py:make", *quick, "--sweep", "noise=1e-9,10")
    assert result.code == 0, result.err
    assert (
        "Noise of 10 proves that nobody reads 20 % of any sample, but ruins the model"
        in " ".join(result.out.split())
    )
    assert "← ruins" in result.out
    page = Path("unsum-report/sweep.html").read_text("utf-8")
    assert 'class="verdict partial"' in page
    assert (
        json.loads(Path("unsum-report/sweep.json").read_text("utf-8"))["enough"][0]["ruins"] is True
    )


def test_iterations_are_heard_of_without_a_terminal(
    unsum: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez("photos.npz", images=np.zeros((2, 32, 32, 3), np.uint8), labels=[0, 1])
    monkeypatch.setattr("unsum.commands.stages.LINE_EVERY", 0.0)
    unsum("capture", "--model", "lenet.py:make", "--data", "photos.npz", "--batch", "1")
    told = unsum(
        "attack",
        "--model",
        "lenet.py:make",
        "--update",
        "client.safetensors",
        "--attack",
        "ig:steps=20",
    ).err
    assert "unsum: step 20 of 20: " in told
