"""The small federated training that prices a defense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unsum
from support.long import long
from unsum.audit.sweep import task
from unsum.audit.sweep.task import (
    Accuracy,
    Pictures,
    photo_tiles,
    pictures_from_file,
    scale_to,
    train,
)
from unsum.client import capture
from unsum.defend import DEFENSES, parse_defense
from unsum.defend.defense import has_strength

STRENGTHS = {"soteria": 0.5, "dp": 0.1}


@pytest.fixture(scope="module")
def tiles() -> Pictures:
    return photo_tiles()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough to see that it runs."""
    monkeypatch.setattr(task, "BATCH", 8)
    monkeypatch.setattr(task, "ROUNDS", 2)
    monkeypatch.setattr(task, "RUNS", 1)
    monkeypatch.setattr(task, "_PATIENCE", 600.0)


def colors(folder: Path, *, channels: int = 3, name: str = "task.npz") -> Path:
    """A task that is easily learnt: bright pictures and dark ones."""
    labels = np.arange(256) % 2
    noise = np.random.default_rng(0).integers(0, 100, (256, 10, 12, channels))
    np.savez(
        folder / name,
        images=(noise + 150 * labels[:, None, None, None]).astype(np.uint8),
        labels=labels + 5,
    )
    return folder / name


def test_no_tile_is_both_learnt_from_and_tested_on(tiles: Pictures) -> None:
    learnt, tested = (part[0].flatten(1) for part in (tiles.train, tiles.test))
    assert learnt.shape == tested.shape == (512, 3 * 32 * 32)
    assert float(torch.cdist(learnt, tested).min()) > 0
    assert tiles.classes == 16
    assert tiles.chance == 1 / 16


@pytest.fixture(scope="module")
def undefended(tiles: Pictures) -> Accuracy:
    return train(tiles, [])


@pytest.mark.long
def test_training_learns_and_noise_costs(tiles: Pictures, undefended: Accuracy) -> None:
    """Undefended far above guessing and below perfection, so that a cost can show; strong noise
    takes most of it."""
    assert undefended.low > 3 * tiles.chance
    assert undefended.high < 0.9
    assert train(tiles, []) == undefended
    gradient = capture(task._network(16, 0), tiles.train[0][:32], tiles.train[1][:32])
    loud = train(tiles, [unsum.Noise(100 * task._entry_size(gradient))])
    assert loud.high < undefended.low - 0.1


@pytest.mark.long
def test_the_scale_of_updates_alone_is_free(tiles: Pictures, undefended: Accuracy) -> None:
    """Adam at the server does not care, up to rounding."""
    assert train(tiles, [], scale=2.0**-10).mean == pytest.approx(undefended.mean, abs=0.02)


def test_updates_are_made_as_large_as_the_audited_one(tiles: Pictures) -> None:
    images, labels = tiles.train
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:32]
    update = capture(task._network(16, 0), images[chosen], labels[chosen])
    assert scale_to(tiles, update) == pytest.approx(1)
    assert scale_to(tiles, update.map(lambda _name, g: g * 5)) == pytest.approx(5)


@pytest.mark.parametrize("name", [entry.name for entry in DEFENSES if entry.name != "secagg"])
def test_every_defense_can_be_priced(tiles: Pictures, quick: None, name: str) -> None:
    kind = DEFENSES[name]
    text = f"{name}:{STRENGTHS.get(name, kind.example):g}" if has_strength(kind) else name
    accuracy = train(tiles, [parse_defense(text)])
    assert 0 <= accuracy.mean <= 1


def test_a_training_that_would_take_too_long_says_so(
    tiles: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "_PATIENCE", 0.0)
    with pytest.raises(unsum.UnsumError, match="would take about"):
        train(tiles, [])


@pytest.mark.long
def test_the_reason_why_there_is_no_accuracy_reaches_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task, "_PATIENCE", 0.0)
    sweep = unsum.sweep("mlp", over="sign", batch=1)
    assert sweep.undefended.accuracy is None
    assert "would take about" in sweep.curves[0].points[0].untrained


@pytest.mark.long
@pytest.mark.parametrize("channels", [1, *long(3)])
def test_a_task_of_ones_own(tmp_path: Path, channels: int) -> None:
    own = pictures_from_file(colors(tmp_path, channels=channels))
    assert own.train[0].shape == (192, 3, 32, 32)
    assert own.test[0].shape == (64, 3, 32, 32)
    assert own.classes == 2  # labels 5 and 6
    assert "task.npz" in own.about
    assert train(own, []).mean > 0.95


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"images": np.zeros((99, 8, 8, 3), np.uint8)}, "the arrays 'images' and 'labels'"),
        ({"images": np.zeros((99, 8, 8, 3)), "labels": np.arange(99)}, "must be uint8"),
        (
            {"images": np.zeros((99, 3, 8, 8), np.uint8), "labels": np.arange(99)},
            "must be uint8 of shape",
        ),
        (
            {"images": np.zeros((99, 8, 8, 3), np.uint8), "labels": np.arange(98)},
            "one whole number per image",
        ),
        (
            {"images": np.zeros((99, 8, 8, 3), np.uint8), "labels": np.zeros(99, int)},
            "two classes or more",
        ),
        ({"images": np.zeros((9, 8, 8, 3), np.uint8), "labels": np.arange(9)}, "at least 64"),
        ({"images": np.array([{}]), "labels": np.arange(9)}, "cannot be trained on"),
    ],
)
def test_what_cannot_be_trained_on_is_named(
    tmp_path: Path, arrays: dict[str, np.ndarray], sentence: str
) -> None:
    np.savez(tmp_path / "task.npz", **arrays)
    with pytest.raises(unsum.UnsumError, match=sentence):
        pictures_from_file(tmp_path / "task.npz")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(unsum.UnsumError, match="cannot be trained on"):
        pictures_from_file(tmp_path / "text.npz")
    with pytest.raises(unsum.UnsumError, match="There is no file"):
        pictures_from_file(tmp_path / "absent.npz")


def test_the_server_moves_as_adam_does() -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Linear(5, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    server = task._Adam()
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-15)
    for step in range(5):
        gradients = {
            name: torch.randn_like(value)
            for name, value in ours.named_parameters()
            if step % 2 or "b" in name
        }
        for name, parameter in theirs.named_parameters():
            parameter.grad = gradients.get(name)
        server.step(dict(ours.named_parameters()), {"bias": gradients["bias"]}, 0.01)
        theirs.weight.grad = None
        adam.step()
    assert torch.equal(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias, rtol=1e-6, atol=0)
