"""Models, updates and data of one's own through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from support.command import Result, runner
from unsum import Update
from unsum.models import load_model

MINE = """
from torch import nn
def net(num_classes):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(512, num_classes))
    model.image_size = 32
    return model
"""


@pytest.fixture
def unsum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Run `unsum …` in a folder with a small model and 24 photos of 12 classes."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    np.savez("photos.npz", images=images, labels=np.arange(24) % 12)
    return runner(monkeypatch, capsys)


MODEL = ["--model", "mine.py:net"]


def test_capture_attack_and_audit_of_what_was_captured(unsum: Callable[..., Result]) -> None:
    chosen = ["--data", "photos.npz", "--batch", "5", "--same-label", "2", "--seed", "3"]
    made = json.loads(unsum("capture", *MODEL, *chosen, "--defense", "clip:0.5", "--json").out)
    assert (made["samples"], made["defenses"], made["update"]) == (
        5,
        "Clip(0.5)",
        "client.safetensors",
    )
    assert Update.load("client.safetensors").batch_size is None  # nothing is disclosed
    refused = unsum("capture", *MODEL)
    assert refused.code == 2
    assert "add --force" in refused.err

    seen = ["--update", "client.safetensors", "--seed", "3"]
    leak = json.loads(unsum("attack", *MODEL, *seen, "--json").out)
    assert leak["batch_size"] == 5
    assert leak["exact"] is True
    assert sorted(leak["labels"])[0] < 12
    held = load_file("unsum-leak/leak.safetensors")
    assert held["features"].shape == (5, 512)
    assert (
        json.loads(Path("unsum-leak/leak.json").read_text())["labels"]
        == held["targets"].argmax(1).tolist()
    )
    assert [file for file in leak["files"] if file.endswith(".png")] == []

    result = unsum("audit", *MODEL, *seen)
    assert result.code == 0, result.err
    for part in ("of unknown size", "leakage, certified", "recovered sample 5", "exact"):
        assert part in result.out
    content = json.loads(Path("unsum-report/result.json").read_text())
    assert content["truth_known"] is False
    assert content["verdict"]["level"] == "features"
    assert content["scores"] == {}
    assert [row["label"] for row in content["samples"]] == [None] * 5
    page = Path("unsum-report/report.html").read_text("utf-8")
    assert "recovered sample 5" in page
    assert "True label" not in page

    simulated = json.loads(
        unsum("audit", *MODEL, *chosen, "--json", "--no-compare", "--out", "simulated").out
    )
    assert simulated["scores"]["label_correct"] == 1
    names = sorted(f"class {label}" for label in leak["labels"])
    # the same batch in both
    assert sorted(f"class {row['label']}" for row in simulated["samples"]) == names


def test_a_captured_update_takes_the_options_of_the_model_too(unsum: Callable[..., Result]) -> None:
    # whose size nobody says
    Path("mine.py").write_text(MINE.replace("    model.image_size = 32\n", ""))
    Path("names.txt").write_text("\n".join(f"kind {letter}" for letter in "abcdefghijkl"))
    unsum("capture", *MODEL, "--data", "photos.npz", "--batch", "3")
    seen = [*MODEL, "--update", "client.safetensors", "--classes-from", "names.txt"]
    found = unsum("attack", *seen, "--image-size", "32")
    assert found.code == 0, found.err
    assert "32²" in found.out
    assert found.out.count("kind ") == 3
    assert "Tried exact: 3 samples, certified, predicted error " in found.out
    assert "class " not in found.out.split("Found")[1]
    assert "does not take photos of 48²" in unsum("attack", *seen, "--image-size", "48").err
    unsum("audit", *seen, "--image-size", "32")
    rows = json.loads(Path("unsum-report/result.json").read_text("utf-8"))["samples"]
    assert all(row["found_label"].startswith("kind ") for row in rows)
    Path("names.txt").write_text("one\ntwo")
    for command in ("attack", "audit"):
        assert (
            "--classes-from names 2 classes, and the model's head has 12"
            in unsum(command, *seen, "--force").err
        )


def test_help_shows_the_defaults_that_no_number_says(unsum: Callable[..., Result]) -> None:
    told = " ".join(unsum("audit", "--help").out.replace("│", " ").split())
    for default in ("(8)", "(0.2)", "(the embedded ones)", "(where that takes seconds)"):
        assert f"[default: {default}]" in told
    groups = {
        command: unsum(command, "--help").out
        for command in ("audit", "attack", "doctor", "capture")
    }
    for option in ("--image-size", "--classes-from", "--fresh-head", "--weights", "--download"):
        assert all(option in text for text in groups.values())


def test_pictures_are_written_where_there_is_an_inverse(unsum: Callable[..., Result]) -> None:
    unsum("capture", "--batch", "2")
    shown = unsum("attack", "--update", "client.safetensors")
    assert shown.code == 0, shown.err
    assert "What the update gives away" in shown.out
    assert Image.open("unsum-leak/sample-2.png").size == (128, 128)


def test_two_checkpoints_bring_the_weights_along(unsum: Callable[..., Result]) -> None:
    # other weights than --seed 0 would give
    model = load_model("mine.py:net", classes=12, seed=77).model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with np.load("photos.npz") as photos:
        images = torch.from_numpy(photos["images"][:4]).permute(0, 3, 1, 2).float() / 255
    torch.nn.functional.cross_entropy(model(images), torch.tensor([0, 1, 2, 3])).backward()
    after = {name: value - 0.1 * model.get_parameter(name).grad for name, value in before.items()}
    torch.save(before, "before.pt")
    np.savez("after.npz", **{name: value.numpy() for name, value in after.items()})
    pair = ["--before", "before.pt", "--after", "after.npz", "--lr", "0.1"]
    leak = json.loads(unsum("attack", *MODEL, *pair, "--json").out)
    assert sorted(leak["labels"]) == [0, 1, 2, 3]
    assert leak["scale"] == pytest.approx(1, rel=1e-3)
    assert "weights of before.pt" in leak["model"]


def test_the_doctor_speaks_and_counts(unsum: Callable[..., Result]) -> None:
    plain = unsum("doctor", *MODEL, "--data", "photos.npz", "--batch", "12")
    assert plain.code == 0, plain.err
    assert "! warning" in plain.out
    assert "12 samples are more than the 11" in plain.out
    findings = unsum("doctor", "--model", "torchvision:squeezenet1_1", "--json")
    assert findings.code == 2
    assert json.loads(findings.out)[-1]["mark"] == "will not work"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["attack", *MODEL], "Give an update (--update FILE), or two checkpoints"),
        (["attack", *MODEL, "--before", "a.pt"], "give both --before and --after"),
        (["attack", *MODEL, "--update", "a.pt", "--before", "a.pt", "--after", "b.pt"], "not both"),
        (["attack", *MODEL, "--update", "absent.pt"], "There is no file 'absent.pt'"),
        (["attack", *MODEL, "--update", "photos.npz"], "holds no '3.weight', the last layer"),
        (
            ["attack", *MODEL, "--update", "photos.npz", "--lr", "1"],
            "add --delta if it is a change of weights",
        ),
        (
            ["attack", *MODEL, "--update", "photos.npz", "--steps", "2"],
            "add --delta if it is a change of weights",
        ),
        (["audit", *MODEL, "--delta"], "--delta describes a captured update"),
        (
            ["audit", *MODEL, "--update", "a.pt", "--data", "photos.npz"],
            "attacked as it is; leave data and defenses out",
        ),
        (["audit", *MODEL, "--update", "a.pt", "--sweep", "sign"], "leave out the captured update"),
        (["audit", *MODEL, "--data", "photos.npz", "--batch", "25"], "The data hold 24 photos"),
        (
            ["audit", *MODEL, "--data", "photos.npz", "--classes", "3"],
            "a model of 3 cannot learn them",
        ),
        (["capture", *MODEL, "--out", "client.pt"], "saved as .safetensors"),
        (["audit", "--model", "scripted.pt"], "'scripted.pt' would have to be TorchScript"),
        (["capture", "--data", "absent"], "There is no file or folder 'absent'"),
    ],
)
def test_bad_input_gives_one_sentence_and_exit_code_2(
    unsum: Callable[..., Result], arguments: list[str], sentence: str
) -> None:
    result = unsum(*arguments)
    assert result.code == 2
    assert sentence in result.err
    assert result.err.strip().splitlines()[-1].startswith("unsum: ")
    assert not Path("unsum-report").exists()
