"""Ceilings on the live page: from few pairs of worlds to many, kept over a slider's moves, and
never green before they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import unsum
from unsum.app import bounds as narrowing
from unsum.app import round as rounds
from unsum.app.bounds import Ceilings
from unsum.app.order import Order
from unsum.data import Batch
from unsum.defend import Noise
from unsum.models.load import LoadedModel

CPU = torch.device("cpu")
Play = Callable[..., dict[str, Any]]


def order(noise: float | None, photos: int = 2) -> Order:
    """Photos of 8² with 3 classes, of which a client trains a dense layer."""
    generator = torch.Generator().manual_seed(7)
    images = torch.rand(photos, 3, 8, 8, generator=generator)
    names = [f"photo {i}" for i in range(photos)]
    batch = Batch(images, torch.arange(photos) % 3, names, ["one", "two", "three"])
    return Order(
        batch, [f"key {i}" for i in range(photos)], None if noise is None else Noise(noise)
    )


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


def test_without_noise_the_ceiling_is_the_photo_itself_from_one_pair(play: Play) -> None:
    result = play(2)
    assert result["ceiling"]["samples"] == result["ceiling"]["lower"] == [1.0, 1.0]
    assert result["ceiling"]["highest"] == 1.0
    assert result["verdict"]["state"] == "leaks"
    assert any("nothing random hides" in text for text in result["verdict"]["details"])
    assert result["unbounded"] == ""


def test_no_figure_is_green_before_every_ceiling_is_below_the_level(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices are short, so that the ceiling is seen as it narrows."""
    monkeypatch.setattr(narrowing, "SLICE", 1e-3)
    answers = list(rounds.play(LoadedModel(model, "dense", 8), order(30.0), CPU))
    verdicts = [
        (a["ceiling"], a["verdict"]["state"]) for a in answers if a["kind"] in ("result", "bound")
    ]
    assert verdicts[0][0] is None  # the first look comes before any pair
    highest = [ceiling["highest"] for ceiling, _ in verdicts if ceiling is not None]
    assert highest == sorted(highest, reverse=True)
    assert highest[0] == 1.0
    assert highest[-1] < 0.2
    for ceiling, state in verdicts:
        proven = ceiling is not None and max(ceiling["samples"]) < 0.2
        assert (state == "protected") == proven
    assert verdicts[-1][1] == "protected"
    assert [a["final"] for a in answers if a["kind"] == "bound"].count(True) == 1
    assert answers[-1]["final"]


def test_another_noise_goes_on_with_the_pairs_that_were_drawn(model: nn.Module) -> None:
    """Noise of 30 needs no further pair once noise of 20 is proven on the same photos."""
    kept = Ceilings()
    played: list[int] = []
    model.register_forward_hook(lambda *_: played.append(1))  # the cached copy has it, too
    first = kept.of(model, order(20.0), CPU, 0)
    while not first.done:
        first.further()
    assert first.bound is not None
    assert first.bound.decided(0.2) == "below"
    drawn = len(played)
    second = kept.of(model, order(30.0), CPU, 0)
    second.further()
    assert second.done
    assert second.bound is not None
    assert second.bound.pairs == first.bound.pairs
    # labels' alternatives at most, where hundreds of pairs were played before
    assert len(played) - drawn <= 2
    assert second.bound.highest < first.bound.highest
    other = kept.of(model, order(30.0, photos=3), CPU, 0)
    other.further()
    assert other.bound is not None
    assert len(other.bound.samples) == 3


def test_it_is_the_ceiling_that_the_audit_has(model: nn.Module) -> None:
    now = Ceilings().of(model, order(30.0), CPU, 0)
    while not now.done:
        now.further()
    own = order(30.0).truth
    audited = unsum.ceiling(model, (own.images, own.targets), noise=30.0, level=0.2, seed=0)
    assert now.bound is not None
    assert now.bound.samples.tolist() == pytest.approx(audited.samples.tolist(), abs=1e-4)
    assert now.bound.decided(0.2) == "below"


def test_a_client_that_cannot_be_played_has_no_ceiling_and_says_why(model: nn.Module) -> None:
    class Fussy(nn.Module):
        """Takes one batch alone."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
            self.only = float(order(None).truth.images.sum())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not math.isclose(float(x.sum()), self.only, rel_tol=1e-6):
                raise RuntimeError("another batch")
            return self.inner(x)

    torch.manual_seed(0)
    now = Ceilings().of(Fussy(), order(1.0), CPU, 0)
    assert list(now.narrowed()) == [True]
    assert now.bound is None
    assert "another batch" in now.absent


def test_interrupted_statistics_are_put_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    kept = Ceilings()
    own = kept.of(model, order(1.0), CPU, 0)._bounds.case.model
    own[2].running_mean.fill_(5.0)  # as a round that was stopped halfway would leave it
    again = kept.of(model, order(2.0), CPU, 0)._bounds.case.model
    assert again is own
    assert float(own[2].running_mean.abs().max()) == 0.0


@pytest.mark.long
def test_a_label_is_called_right_where_it_is_the_true_one(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels are counted from the best of all attacks, whose sample need not be the one that is
    shown."""
    monkeypatch.setattr(narrowing, "LONGEST", 0.0)
    right = 0
    for noise in (0.03, 0.1, 0.3):
        answers = rounds.play(LoadedModel(model, "dense", 8), order(noise, photos=3), CPU)
        for result in [answer for answer in answers if answer["kind"] == "result"]:
            for sample in result["samples"]:
                assert sample["label_correct"] == (sample["found_label"] == sample["label"])
                right += sample["label_correct"]
    assert right > 0
