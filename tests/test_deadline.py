"""Searches that keep a time limit: the best answer so far, no claim, and a note on what was left untried."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import unsum
from unsum.deadline import out_of_time, time_limit
from unsum.errors import UnsumError


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(512, 100))


def _forged() -> unsum.Update:
    """A gradient of 24 directions that no batch has: nothing explains it, and every way is tried for minutes."""
    torch.manual_seed(1)
    U = torch.randn(100, 24)
    U = U - U.mean(0)
    return unsum.Update({"1.weight": U @ torch.randn(24, 512).relu(), "1.bias": U.sum(1)})


def test_without_a_limit_time_is_never_over() -> None:
    assert not out_of_time("anything")
    with time_limit(None) as deadline:
        assert not out_of_time("anything")
    assert deadline.cut == []


def test_limits_inside_each_other_end_with_the_earliest_and_remember_what_each_cut() -> None:
    with time_limit(1e-9) as outer:
        with time_limit(1000) as inner:
            assert out_of_time("a search")
            assert out_of_time("a search")
        assert out_of_time("another")
    assert (inner.cut, outer.cut) == (["a search"], ["another"])
    assert not out_of_time("after it")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), "5"])
def test_a_limit_that_makes_no_sense(seconds: float) -> None:
    with pytest.raises(UnsumError, match="time limit must be positive"), time_limit(seconds):
        pass


def test_a_forged_gradient_keeps_the_solver_no_longer_than_it_is_given() -> None:
    start = time.process_time()  # of this process alone: other work on the machine does not count
    leak = unsum.separate(_model(), _forged(), time_limit=1.0)
    assert time.process_time() - start < 6  # without a limit it takes minutes
    assert not leak.exact
    assert leak.notes[0].startswith("Time was over; left untried: ")
    assert leak.features.shape[1] == 512
    assert not leak.predicted_error < 0.1


@pytest.mark.parametrize(("seconds", "exact"), [(600.0, True), (1e-6, False)])
def test_an_honest_batch_is_certified_only_where_its_search_came_to_its_end(seconds: float, exact: bool) -> None:
    model, images = _model(), torch.rand(6, 512)
    update = unsum.capture(model, images, torch.arange(6))
    leak, free = unsum.separate(model, update, time_limit=seconds), unsum.separate(model, update)
    assert free.exact
    assert leak.exact is exact
    assert any("left untried" in note for note in leak.notes) is not exact
    if exact:
        assert torch.equal(leak.features, free.features)
