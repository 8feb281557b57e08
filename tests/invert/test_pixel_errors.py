"""What pictures' predicted errors are made of, by hand: a layer that reads four copies of a gray
picture."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from unsum.engine.replay import Replay
from unsum.invert.pixels import judge
from unsum.invert.pixels.equations import posed
from unsum.invert.pixels.judge import Solution
from unsum.invert.pixels.reach import PixelReach
from unsum.leak import Leak
from unsum.update import Update

SIDE = 4


def copies(number: int) -> nn.Sequential:
    """Reads so many copies of a picture."""
    model = nn.Sequential(nn.Conv2d(1, number, 1, bias=False), nn.Conv2d(number, 2, 1)).eval()
    nn.init.ones_(model[0].weight)
    return model


def solved(
    misfit: float,
    number: int = 4,
    counted: int | None = None,
    contrast: float | None = None,
    side: int = SIDE,
) -> Solution:
    """The true pictures of a map that `misfit` of it was left of; `counted` equations instead of
    all."""
    pictures = (
        torch.rand(
            2, 1, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        + 0.5
    )
    model = copies(number)
    maps: Tensor = pictures.expand(2, number, side, side).clone()
    if counted is not None:
        maps.flatten(1)[:, counted:] = 0  # behind a ReLU a zero is no equation
    reach = PixelReach("1", maps, (1, side, side))
    with posed(model, {"1": maps}, torch.float64) as equations:
        return Solution.at(
            equations,
            reach,
            pictures,
            torch.full((2, 1, 1, 1), misfit, dtype=torch.float64),
            contrast,
        )


def test_a_misfit_is_divided_by_the_share_of_equations_to_spare() -> None:
    """64 equations for 16 unknowns leave three quarters: noise is the misfit over √¾. It is
    relative to the map, of which four copies are twice as long as the picture, and along the
    picture it becomes the same relative error."""
    assert solved(1e-4).errors.tolist() == pytest.approx([1e-4 / 0.75**0.5] * 2, rel=1e-9)
    assert solved(1e-4, number=2).errors.tolist() == pytest.approx([1e-4 / 0.5**0.5] * 2, rel=1e-9)


def test_a_map_errs_by_the_last_place_of_float32_at_least() -> None:
    assert solved(0.0).errors.tolist() == pytest.approx(
        [float(torch.finfo(torch.float32).eps)] * 2, rel=1e-9
    )


def test_a_fifth_more_equations_than_unknowns_are_needed() -> None:
    assert solved(1e-4, number=2, counted=20).errors.isfinite().all()
    assert solved(1e-4, number=2, counted=19).errors.tolist() == [math.inf, math.inf]


def test_a_map_that_is_off_by_a_hundredth_predicts_nothing() -> None:
    assert solved(0.99e-2).errors.isfinite().all()
    assert solved(1.01e-2).errors.tolist() == [math.inf, math.inf]


def test_where_the_contrast_is_told_by_itself_the_direction_of_the_picture_is_left_out() -> None:
    """A picture of one pixel has no other direction; of sixteen, fifteen are left, far below the
    worst case."""
    assert solved(1e-4, contrast=1e-5, side=1).errors.tolist() == pytest.approx([0, 0], abs=1e-12)
    shape = solved(1e-4, contrast=1e-5)
    assert shape.contrast == 1e-5
    assert (shape.errors < 0.9 * solved(1e-4).errors).all()
    assert (shape.errors > 0.1 * solved(1e-4).errors).all()


def test_a_picture_that_sends_nothing_is_not_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pictures of one certificate; the second sends no more than rounding leaves."""
    errors = torch.tensor([1e-6, 1e-6], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    leak = Leak("spans", torch.eye(2), torch.zeros(2, 2), torch.ones(2, 3), 0.0, 0.0, exact=False)
    for sent, exact in ((1.0, [True, True]), (2.9e-6, [True, False])):
        played = Replay(("0.weight",), one, 1e-7 * one, 1e-6 * one, torch.stack([one, sent * one]))
        monkeypatch.setattr(judge, "play", lambda *_, played=played: played)
        solution = Solution(torch.zeros(2, 1, 2, 2), errors, [])
        found, certain, notes = judge.judge(copies(1), Update({"0.weight": one}), leak, solution)
        assert certain.tolist() == exact
        assert found.isfinite().tolist() == exact
        assert any(note.startswith("Sample 1 would send hardly more") for note in notes) != exact[1]
    monkeypatch.setattr(
        judge,
        "play",
        lambda *_: Replay(("0.weight",), one, 1.1e-6 * one, 1e-6 * one, torch.ones(2, 1)),
    )
    assert judge.judge(copies(1), Update({"0.weight": one}), leak, solution)[1].tolist() == [
        False,
        False,
    ]


def reach(nonzero: int, unknowns: int) -> PixelReach:
    maps = torch.zeros(2, 1, 10, 10)
    maps.flatten(1)[0, :nonzero] = 1
    maps[1] = 1  # the sample that has the fewest counts
    return PixelReach("1", maps, (1, 1, unknowns))


def test_what_a_map_tells_is_counted_by_the_sample_that_has_the_fewest_numbers() -> None:
    assert reach(40, 10).equations == 40
    assert (reach(41, 40).determined, reach(40, 40).determined) == (True, False)
    assert (reach(41, 10).plenty, reach(40, 10).plenty) == (True, False)  # four for each unknown
    assert (reach(26, 100).useful, reach(25, 100).useful) == (True, False)  # half the side
    assert (reach(13, 100).blurred, reach(12, 100).blurred) == (True, False)
