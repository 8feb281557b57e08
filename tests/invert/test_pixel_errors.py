"""What pictures' predicted errors are made of, by hand: a layer that reads four copies of a gray picture."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from unsum.invert.pixels.equations import posed
from unsum.invert.pixels.judge import Solution
from unsum.invert.pixels.reach import PixelReach

SIDE = 4


def copies(number: int) -> nn.Sequential:
    """Reads so many copies of a picture: 16 numbers each, for 16 unknowns."""
    model = nn.Sequential(nn.Conv2d(1, number, 1, bias=False), nn.Conv2d(number, 2, 1)).eval()
    nn.init.ones_(model[0].weight)
    return model


def solved(misfit: float, number: int = 4, counted: int | None = None, contrast: float | None = None) -> Solution:
    """The true pictures of a map that `misfit` of it was left of; `counted` equations instead of all."""
    pictures = torch.rand(2, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    model = copies(number)
    maps: Tensor = pictures.expand(2, number, SIDE, SIDE).clone()
    if counted is not None:
        maps.flatten(1)[:, counted:] = 0  # behind a ReLU a zero is no equation
    reach = PixelReach("1", maps, (1, SIDE, SIDE))
    with posed(model, {"1": maps}, torch.float64) as equations:
        return Solution.at(equations, reach, pictures, torch.full((2, 1, 1, 1), misfit, dtype=torch.float64), contrast)


def test_a_misfit_is_divided_by_the_share_of_equations_to_spare() -> None:
    """64 equations for 16 unknowns leave three quarters: noise is the misfit over √¾. It is relative to the map, of which
    four copies are twice as long as the picture, and along the picture it becomes the same relative error."""
    assert solved(1e-4).errors.tolist() == pytest.approx([1e-4 / 0.75**0.5] * 2, rel=1e-9)
    assert solved(1e-4, number=2).errors.tolist() == pytest.approx([1e-4 / 0.5**0.5] * 2, rel=1e-9)


def test_a_map_errs_by_the_last_place_of_float32_at_least() -> None:
    assert solved(0.0).errors.tolist() == pytest.approx([float(torch.finfo(torch.float32).eps)] * 2, rel=1e-9)


def test_a_fifth_more_equations_than_unknowns_are_needed() -> None:
    assert solved(1e-4, number=2, counted=20).errors.isfinite().all()
    assert solved(1e-4, number=2, counted=19).errors.tolist() == [math.inf, math.inf]


def test_a_map_that_is_off_by_a_hundredth_predicts_nothing() -> None:
    assert solved(0.99e-2).errors.isfinite().all()
    assert solved(1.01e-2).errors.tolist() == [math.inf, math.inf]


def test_where_the_contrast_is_told_by_itself_the_direction_of_the_picture_is_left_out() -> None:
    """One probe of noise in 64 directions, of which fifteen move the picture's shape: far below the worst case."""
    shape = solved(1e-4, contrast=1e-5)
    assert shape.contrast == 1e-5
    assert (shape.errors < 0.9 * solved(1e-4).errors).all()
    assert (shape.errors > 0.1 * solved(1e-4).errors).all()
