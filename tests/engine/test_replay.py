"""The comparison of a replayed gradient with the one received, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from unsum.engine.replay import CHUNK, Replay, fitted_scale, norms, rounding, tolerance

EPS = float(torch.finfo(torch.float32).eps)
SENT = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([[0.0, 0.1]])}  # of norm 5 and 0.1


def within(a: float, b: float, **options: object) -> Replay:
    left = {"a": torch.tensor([a, 0.0]), "b": torch.tensor([[b, 0.0]])}
    return Replay.within(SENT, left, **options)


def test_tolerances_of_all_precisions() -> None:
    assert rounding(torch.float64) == 100 * torch.finfo(torch.float64).eps
    assert rounding(torch.float32) == 100 * EPS
    assert rounding(torch.float16) == rounding(torch.bfloat16) == 1e-3
    assert tolerance() == tolerance(torch.float64) == 100 * EPS  # the client computes in float32
    assert tolerance(torch.float32, torch.bfloat16) == 1e-3


def test_a_share_of_each_tensor_is_rounding() -> None:
    replay = within(5 * 99 * EPS, 0.1 * 50 * EPS)
    assert replay.names == ("a", "b")
    assert replay.sent.tolist() == pytest.approx([5, 0.1])
    assert replay.explains
    assert replay.unexplained == pytest.approx(99 * EPS)
    assert replay.excess == pytest.approx(0.99)
    assert replay.worst == "a"
    other = within(5 * 99 * EPS, 0.1 * 101 * EPS)
    assert not other.explains
    assert (other.worst, other.excess) == ("b", pytest.approx(1.01))


def test_sizes_and_limits_may_be_others() -> None:
    """A hundredth of what `b` is compared with, and the whole of its own norm."""
    replay = within(0.0, 0.1, sizes={"a": 5.0, "b": 10.0}, limit=0.02)
    assert replay.explains
    assert replay.unexplained == pytest.approx(0.01)
    assert replay.excess == pytest.approx(0.5)
    limits = torch.tensor([0.1, 0.001], dtype=torch.float64)
    assert not within(0.0, 0.1, sizes={"a": 5.0, "b": 10.0}, limit=limits).explains


def test_the_residual_is_that_of_the_whole_gradient() -> None:
    assert within(3.0, 4.0).residual == pytest.approx(5 / math.hypot(5, 0.1))
    assert within(3.0, 4.0).unseen == pytest.approx(10 / math.hypot(5, 0.1))


def test_nan_explains_nothing_and_is_the_worst() -> None:
    replay = within(1.0, math.nan)
    assert not replay.explains
    assert math.isnan(replay.unexplained)
    assert replay.worst == "b"


def test_confirmations_are_tensors_that_were_not_used_and_show_everyone() -> None:
    sent, rounded = torch.ones(3), torch.full((3,), 0.1)
    parts = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.31, 0.29]])  # seen above 3 × 0.1
    replay = Replay(("a", "b", "c"), sent, torch.zeros(3), rounded, parts)
    assert replay.shows().tolist() == [[True, True, True], [True, True, False]]
    assert replay.confirmations([]) == 2
    assert replay.confirmations(["a", "c"]) == 1
    assert replay.confirmations(["a", "b"]) == 0


def test_norms_add_up_over_chunks() -> None:
    long = torch.full((CHUNK + 5,), 2.0)
    assert norms([long, SENT["a"]]).tolist() == pytest.approx([2 * (CHUNK + 5) ** 0.5, 5.0])
    assert norms([long]).dtype == torch.float64


def test_the_scale_that_fits_best_is_a_projection() -> None:
    own = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([[0.0, 1.0]])}
    assert fitted_scale(SENT, own) == pytest.approx((3 + 0.1) / 2)
    assert fitted_scale(SENT, {"a": 2 * SENT["a"]}) == pytest.approx(0.5)
