"""The equation by hand: residual, products with the Jacobian, factors for all samples or for each,
and its solver."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.equation.equation import (
    Equation,
    Linearized,
    NoFactorError,
    Unknowns,
    positive_factor,
    solve,
)
from unsum.losses import SquaredError


def numbers(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.fixture
def by_hand() -> Linearized:
    """One sample of length 3: G = (3, 6) − (0, 1), and what is sent is ½ Gᵀ (3, 2)."""
    equation = Equation(
        numbers([1.0, 2.0]),
        torch.zeros(2, dtype=torch.float64),
        numbers([4.0, 3.0], [7.0, 4.0]),
        numbers([1.0, 2.0])[0],
        2.0,
        numbers([0.0, 1.0]),
        alpha_free=True,
        loss=SquaredError(),
    )
    return Linearized(equation, Unknowns.of(numbers([3.0]), 0.5))


def test_residual_and_derivatives(by_hand: Linearized) -> None:
    assert by_hand.G.tolist() == [[3.0, 5.0]]
    assert by_hand.residual.tolist() == [[0.5, 0.0], [1.0, 2.0]]
    assert float(by_hand.cost) == 5.25
    assert by_hand.alpha_derivative().tolist() == [[[4.5, 3.0], [15.0, 10.0]]]
    # By T: w ∘ ½ (K T̃ + G [1, 0]) = [[3, 1], [11, 4]].
    assert by_hand.push(numbers([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0])).tolist() == [
        [[3.0, 1.0], [11.0, 4.0]],
        [[4.5, 3.0], [15.0, 10.0]],
        [[0.0, 0.0], [0.0, 0.0]],  # the floor is not free
    ]
    assert by_hand.gradient.tolist() == [1.5 + 11 + 8, 0.0, 2.25 + 15 + 20]
    assert by_hand.normal_matrix.tolist() == [
        [147.0, 0.0, 221.5],
        [0.0, 1.0, 0.0],
        [221.5, 0.0, 354.25],
    ]
    assert by_hand.normal_diagonal.tolist() == [147.0, 1.0, 354.25]
    assert by_hand.coupling().tolist() == [[0.25 * (9 + 4 * 25)]]


def test_each_sample_may_have_its_own_factor() -> None:
    T, K = numbers([1.0], [2.0]), numbers([1.0, 0.0, 3.0])
    equation = Equation(
        K,
        torch.zeros(3).double(),
        torch.zeros(3, 1).double(),
        torch.ones(3).double(),
        alpha_free=True,
        loss=SquaredError(),
    )
    equation = replace(equation, Y=numbers([1.0, 1.0, 0.0], [0.0, 0.0, 1.0]))
    here = Linearized(equation, Unknowns(T, T.new_zeros(()), numbers([0.5, 4.0])[0].log()))
    # G = (0, −1, 3) and (2, 0, 5), times T and the factors.
    assert torch.allclose(
        here.residual[:, 0], 0.5 * numbers([0.0, -1.0, 3.0])[0] + 8 * numbers([2.0, 0.0, 5.0])[0]
    )
    own = here.alpha_derivative()[..., 0]
    assert torch.allclose(own, numbers([0.0, -0.5, 1.5], [16.0, 0.0, 40.0]))
    J = here.push(torch.eye(5, dtype=torch.float64)).flatten(1)
    assert torch.allclose(J[3:], own)
    assert torch.allclose(here.gradient, J @ here.residual.flatten())


def test_targets_have_their_floor() -> None:
    equation = Equation(
        torch.eye(2).double(),
        torch.zeros(2).double(),
        torch.zeros(2, 2).double(),
        torch.ones(2).double(),
    )
    at = Unknowns.of(torch.eye(2).double(), 1.0, 0.1)
    assert equation.targets(at).tolist() == [[0.1, 0.1], [0.1, 0.1]]
    whole = replace(equation, Y=torch.eye(2).double())
    assert torch.allclose(whole.targets(at), numbers([0.9, 0.1], [0.1, 0.9]))


def test_unknowns_as_one_vector() -> None:
    at = Unknowns(
        torch.arange(12.0).view(2, 2, 3),
        torch.tensor([7.0, 8.0]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    )
    assert at.vector[1].tolist() == [6, 7, 8, 9, 10, 11, 8, 3, 4]
    back = Unknowns.of_vector(at.vector, 2, 3)
    assert torch.equal(back.T, at.T)
    assert torch.equal(back.floor, at.floor)
    assert torch.equal(back.log_alpha, at.log_alpha)
    assert at.is_sound
    assert not replace(at, log_alpha=torch.tensor([0.0, math.inf])).is_sound
    assert not replace(at, T=at.T * torch.nan).is_sound
    assert positive_factor(2.0) == 2.0
    with pytest.raises(NoFactorError):
        positive_factor(-1.0)


@pytest.fixture
def solvable() -> tuple[Equation, Tensor]:
    """Three samples under a softmax over 40 classes, in units of a noise of 1e-6; and their T."""
    generator = torch.Generator().manual_seed(4)
    T = 1 + torch.randn(3, 3, generator=generator, dtype=torch.float64)
    K = 0.5 * torch.randn(3, 40, generator=generator, dtype=torch.float64)
    Y = torch.nn.functional.one_hot(torch.tensor([3, 3, 9]), 40).double()
    b, weight = torch.zeros(40, dtype=torch.float64), torch.full((40,), 1e6, dtype=torch.float64)
    empty = Equation(K, b, torch.zeros(40, 4).double(), weight, 0.7, Y)
    sent = empty.residual(Unknowns.of(T, 1 / 3)) / weight[:, None]
    return replace(empty, U=sent), T


def test_the_solver_finds_them(solvable: tuple[Equation, Tensor]) -> None:
    equation, T = solvable
    near = T + 0.1
    for steps in (60, Budget(steps=60)):
        found = solve(equation, Unknowns.of(near, 1 / 3), steps)
        assert torch.allclose(found.T, T, atol=1e-7)
    iterative = solve(equation, Unknowns.of(near, 1 / 3), 1)
    assert 1e-4 < float((iterative.T - T).abs().max()) < 0.1  # one step leads nearer


def test_many_are_solved_as_each_alone(solvable: tuple[Equation, Tensor]) -> None:
    equation, T = solvable
    starts = torch.stack([T + 0.1, T - 0.05, T.flip(0) + 0.02])
    together = solve(equation, Unknowns.of(starts, 1 / 3), 60)
    for start, end in zip(starts, together.T, strict=True):
        assert torch.allclose(solve(equation, Unknowns.of(start, 1 / 3), 60).T, end, atol=1e-7)


def test_below_the_noise_is_enough_roughly(solvable: tuple[Equation, Tensor]) -> None:
    equation, T = solvable
    rough = solve(equation, Unknowns.of(T + 0.1, 1 / 3), roughly=True)
    whole = solve(equation, Unknowns.of(T + 0.1, 1 / 3))
    assert float(equation.cost(whole)) < float(equation.cost(rough)) < equation.U.numel()


def test_large_ones_are_solved_by_products() -> None:
    """18 samples have more unknowns than the normal matrix is formed for."""
    generator = torch.Generator().manual_seed(1)
    T = 1 + torch.randn(18, 18, generator=generator, dtype=torch.float64)
    K = 0.3 * torch.randn(18, 200, generator=generator, dtype=torch.float64)
    Y = torch.nn.functional.one_hot(torch.arange(18), 200).double()
    empty = Equation(
        K,
        torch.zeros(200).double(),
        torch.zeros(200, 19).double(),
        torch.ones(200).double(),
        1.0,
        Y,
    )
    equation = replace(empty, U=empty.residual(Unknowns.of(T, 1 / 18)))
    start = T + 0.05 * torch.randn(T.shape, generator=generator, dtype=torch.float64)
    found = solve(equation, Unknowns.of(start, 1 / 18), 60)
    assert torch.allclose(found.T, T, atol=1e-6)
