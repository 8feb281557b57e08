"""What a round answers: the figures of an audit, first looks, refusals of the attack."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image

import unsum
from unsum.app import round as rounds
from unsum.app.order import Order, menu
from unsum.data import embedded_batch
from unsum.models import load_model

Play = Callable[..., dict[str, Any]]
KINDS = ["stage", "stage", "result", "bound"]  # the attack is certain, and no noise hides anything


def test_the_default_batch_comes_back_as_in_an_audit(
    play: Play, default_audit: unsum.Audit
) -> None:
    result = play()
    assert [answer["kind"] for answer in result["answers"]] == KINDS  # no first look: no defense
    assert result["certificate"] is True
    assert result["found"].startswith("8 distinct samples; how many of each is not determined")
    assert result["verdict"]["level"] == "severe"
    assert result["worst_leakage"] > 0.999
    assert [row["label_correct"] for row in result["samples"]] == [True] * 8
    assert [row["title"] for row in result["samples"]] == default_audit.truth.titles
    for row, expected in zip(result["samples"], default_audit.samples, strict=True):
        assert row["feature_error"] < 1e-5
        assert row["psnr"] == pytest.approx(expected.psnr, abs=0.01)


@pytest.fixture(scope="module")
def alone(play: Play) -> dict[str, Any]:
    """A round with one photo."""
    return play(1)


def test_pictures_are_pngs_of_the_models_size(alone: dict[str, Any]) -> None:
    for row in alone["samples"]:
        head, _, content = row["picture"].partition(",")
        assert head == "data:image/png;base64"
        assert Image.open(io.BytesIO(base64.b64decode(content))).size == (128, 128)


def test_duplicates_share_a_label_and_are_told_apart(play: Play) -> None:
    result = play(5, same_label=4)
    labels = [row["label"] for row in result["samples"]]
    assert len(set(labels[:4])) == 1
    assert labels[4] not in labels[:4]
    assert result["certificate"] is True
    assert [row["found_label"] for row in result["samples"]] == labels


def test_one_photo_is_a_batch(alone: dict[str, Any]) -> None:
    assert alone["found"].startswith("1 distinct sample;")
    assert alone["verdict"]["headline"] == (
        "This update gives away the features of its picture (32,768 features for 49,152 numbers), "
        "and a part of its picture."
    )


@pytest.mark.long
def test_strong_noise_gives_no_photo_away(play: Play) -> None:
    strongest = len(menu()["noise"].strengths) - 1
    result = play(2, defense={"name": "noise", "stop": strongest})
    assert result["certificate"] is False
    assert result["verdict"]["share"] == 0
    assert result["mean_leakage"] < 0.1
    looks = [answer for answer in result["answers"] if answer["kind"] == "result"]
    assert (looks[0]["final"], looks[0]["method"]) == (False, "fgla")


@pytest.mark.long
def test_weak_noise_gives_every_photo_away(play: Play) -> None:
    result = play(3, defense={"name": "noise", "stop": 0})
    assert result["verdict"]["level"] == "severe"
    assert all(row["label_correct"] for row in result["samples"])


def test_an_attack_that_cannot_begin_is_an_answer(play: Play) -> None:
    result = play(2, defense={"name": "drop-head"})
    assert (result["verdict"]["state"], result["verdict"]["share"]) == ("not decidable", None)
    assert "lacks 'head.weight'" in result["verdict"]["headline"]
    assert [row["leakage"] for row in result["samples"]] == [None, None]  # never 0 %
    assert (result["worst_leakage"], result["mean_leakage"]) == (None, None)
    assert [row["picture"] for row in result["samples"]] == [None, None]


@pytest.mark.long
def test_a_round_leaves_nothing_behind(play: Play) -> None:
    first, _, again = play(2), play(2, defense={"name": "sign"}), play(2)
    assert first["samples"] == again["samples"]


def test_a_certain_attack_needs_no_first_look(play: Play) -> None:
    result = play(4, defense={"name": "clip", "stop": 5})
    assert [answer["kind"] for answer in result["answers"]] == KINDS
    assert result["certificate"] is True


@pytest.mark.long
def test_blends_are_shown_and_compared_with_where_photos_are_mixed(play: Play) -> None:
    plain, mixed = play(3), play(3, defense={"name": "mixup", "stop": 20})
    assert all("blend" not in row for row in plain["samples"])
    blends = [row["blend"] for row in mixed["samples"]]
    assert len(set(blends)) == 3
    assert all(row["feature_error"] < 0.01 for row in mixed["samples"])  # of the blends


def test_dp_is_played_with_running_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch's own would be refused. What comes then is the attack of any noisy round, half a
    minute long."""
    monkeypatch.setattr(rounds, "_is_certain", lambda *_: True)  # no first look
    photos = embedded_batch(2, image_size=128)
    loaded = load_model("default", classes=len(photos.class_names))
    answers = rounds.play(
        loaded, Order(photos, ["one", "two"], unsum.DPSGD(0.01)), torch.device("cpu")
    )
    assert [next(answers)["sentence"] for _ in range(2)] == [
        "The client computes its update",
        "The server runs the whole attack",
    ]
