"""The figures behind a claim about inputs, by hand: what a residual says of the error, and what
stands above it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from unsum.certify.claim import grant_each
from unsum.engine.replay import Replay
from unsum.network.activations import IDENTITY
from unsum.network.chain import Step
from unsum.peel.conv import peel_conv
from unsum.peel.dense import (
    DenseSolution,
    Front,
    column_space,
    open_range,
    peel_dense,
    rounding,
    solve_dense,
    standard_errors,
)
from unsum.peel.replay import Pass, PlayedBatch, Replayed

EPS = float(torch.finfo(torch.float32).eps)
INVERSE = torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)  # rows of norm 5 and 2
X = torch.tensor([[3.0, 4.0], [6.0, 8.0]], dtype=torch.float64)  # of norm 5 and 10


def dense(n: int, m: int, grad_W: Tensor | None = None) -> Step:
    layer = nn.Linear(n, m, bias=False)
    W = layer.weight.detach().double()
    return Step(
        "a layer", layer, IDENTITY, W, None, torch.zeros_like(W) if grad_W is None else grad_W, None
    )


def errors(
    residual: float, units: int, dtype: torch.dtype = torch.float32, missing: float = 0.01
) -> Tensor:
    """Of two samples with so many units that are active for one of them, and three for none."""
    delta = torch.zeros(2, units + 3, dtype=torch.float64)
    delta[0, :units] = 1
    return standard_errors(INVERSE, X, missing, residual, delta, dtype)


def test_a_residual_of_rounding_averages_over_the_equations_to_spare() -> None:
    """Eighteen units less two samples leave sixteen: 5 · 0.01 / √16 / 5 and 2 · 0.01 / √16 / 10."""
    assert rounding(torch.float32) == pytest.approx(100 * EPS)
    expected = [0.0025 + EPS, 0.0005 + EPS]
    assert errors(0.99 * rounding(torch.float32), 18).tolist() == pytest.approx(expected)


def test_a_residual_beyond_rounding_points_anywhere() -> None:
    """Then it is a wrong δ somewhere, and nothing is averaged: the worst case is without the
    root.
    """
    assert errors(1.01 * rounding(torch.float32), 18).tolist() == pytest.approx(
        [0.01 + EPS, 0.002 + EPS]
    )


def test_four_equations_to_spare_are_enough_and_three_prove_nothing() -> None:
    assert errors(0.0, 6).tolist() == pytest.approx([0.005 + EPS, 0.001 + EPS])  # √4
    assert errors(0.0, 5).tolist() == [math.inf, math.inf]
    assert errors(0.0, 5, missing=0.0).tolist() == [math.inf, math.inf]  # a perfect fit, too


def test_half_precision_has_no_more_than_a_thousandth_of_rounding() -> None:
    assert rounding(torch.float64) == pytest.approx(2.22e-14, rel=1e-3)
    assert rounding(torch.bfloat16) == 1e-3


def test_a_layer_s_residual_and_rank_by_hand() -> None:
    """δ reads two units of six; a third row of the gradient, that no sample explains, is what is
    left: 3 of √(1 + 4 + 9)."""
    delta = torch.zeros(2, 6, dtype=torch.float64)
    delta[0, 0], delta[1, 1] = 1, 2
    grad_W = torch.zeros(6, 2, dtype=torch.float64)
    grad_W[0, 0], grad_W[1, 1], grad_W[2, 0] = 1, 2, 3
    solution = solve_dense(dense(2, 6, grad_W), delta)
    assert torch.allclose(solution.X, torch.eye(2, dtype=torch.float64))
    assert solution.residual == pytest.approx(3 / 14**0.5)
    # no equation is to spare
    assert (solution.rank, solution.errors.tolist()) == (2, [math.inf, math.inf])


def test_samples_that_send_multiples_of_each_other_are_not_determined() -> None:
    """Ten equations to spare, and a single direction for two samples."""
    one = torch.arange(1.0, 13.0, dtype=torch.float64)[None]
    alike: DenseSolution = solve_dense(dense(2, 12, one.T @ X[:1]), torch.cat([one, 2 * one]))
    assert alike.rank == 1
    assert alike.errors.tolist() == [math.inf, math.inf]
    apart = solve_dense(dense(2, 12, one.T @ X[:1]), torch.cat([one, one.flip(1)]))
    assert apart.rank == 2
    assert bool(apart.errors.isfinite().all())


def test_a_layer_adds_its_own_error_to_what_came_down() -> None:
    """Copies that were not disturbed do not scatter: three times the layer's own error is left. One
    that is off by a tenth scatters by as much, and both are added as squares."""
    generator = torch.Generator().manual_seed(0)
    delta = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    grad_W = delta.T @ X + 1e-5 * torch.randn(12, 2, generator=generator, dtype=torch.float64)
    step, above = dense(2, 12, grad_W.float()), replace(dense(12, 12), W=torch.eye(12).double())
    own = solve_dense(step, delta).errors
    y = torch.ones(2, 12, dtype=torch.float64)
    for factor, scatter in ((1.0, 0.0), (1 / 1.1, 0.1)):
        copies = Front(y, delta, torch.zeros(2).double(), y[None], factor * delta[None])
        below, layer, notes = peel_dense(copies, above, step, seed=0)
        assert below.errors.tolist() == pytest.approx(
            (3 * (own.square() + scatter**2).sqrt()).tolist(), rel=1e-4
        )
        assert layer.predicted_error == pytest.approx(float(below.errors.max()))
        assert notes == []


@pytest.mark.parametrize(("off", "at_least", "at_most"), [(0.0, 0.0, 1e-3), (0.01, 0.01, 1.0)])
def test_a_convolution_s_residual_beyond_its_noise_is_an_error(
    off: float, at_least: float, at_most: float
) -> None:
    """What a layer wrote was said to be known to 1e-6, and a hundredth of it contradicts the
    gradient."""
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 6, 3, padding=1, bias=False).double()
    x, delta = torch.randn(1, 2, 5, 5).double(), torch.randn(1, 6, 5, 5).double()
    W = layer.weight.detach()
    step = Step(
        "a layer", layer, IDENTITY, W, None, conv2d_weight(x, W.shape, delta, padding=1), None
    )
    y = layer(x).detach()
    found, _, errors, _ = peel_conv(
        step, y + off * torch.randn_like(y), delta, torch.tensor([1e-6]), (2, 5, 5), 0
    )
    assert at_least <= float(errors) < at_most
    assert float((found - x).norm() / x.norm()) <= float(errors)


def test_how_near_to_zero_a_relu_is_open() -> None:
    """Twenty predicted errors of the usual entry: outputs (3, 4) have √12.5, and an error of 0.01 a
    fifth of that."""
    scale, cut = open_range(torch.tensor([[3.0, 4.0]]).double(), torch.tensor([0.01]).double())
    assert scale.tolist() == [[pytest.approx(12.5**0.5)]]
    assert cut.tolist() == [[pytest.approx(0.2 * 12.5**0.5)]]


def played(left: list[float]) -> Replayed:
    """Two samples in two layers: they send 5 · 2 and 10 · 1 to the first, 1 · 3 and 1 · ½ to the
    second."""
    x = [X, torch.eye(2, dtype=torch.float64)]
    first, second = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 3.0], [0.5, 0.0]])
    steps = [dense(2, 2), dense(2, 2)]
    batch = PlayedBatch(steps, X, torch.eye(2), 1.0, [(2,), (2,)])
    none = torch.zeros(1)
    rest = Replay(("0.weight",), none, none, none)
    return Replayed(batch, Pass(x, [first.double(), second.double()], []), left, rest)


def test_the_layer_that_hears_least_of_a_sample_counts() -> None:
    assert played([0.1, 0.5]).contributions().tolist() == pytest.approx([6, 1])
    assert played([5.0, 0.5]).contributions().tolist() == pytest.approx([2, 1])
    assert played([50.0, 0.5]).contributions().tolist() == pytest.approx([0.2, 0.2])


def test_inputs_are_exact_below_a_thousandth_where_all_above_is_and_nobody_doubts() -> None:
    values = torch.tensor([0.99e-3, 1.01e-3, math.nan, 0.0])
    assert grant_each(values, above=True).tolist() == [True, False, False, True]
    assert grant_each(values, above=False).tolist() == [False] * 4
    assert grant_each(values, above=True, doubts=["One."]).tolist() == [False] * 4


def test_the_column_space_is_that_of_the_exact_svd() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(50, 4) @ torch.randn(4, 70)
    U = column_space(matrix, 4)
    exact = torch.linalg.svd(matrix.double())[0][:, :4]
    torch.testing.assert_close(U @ U.T, exact @ exact.T, atol=1e-6, rtol=0)
