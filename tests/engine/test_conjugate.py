"""Conjugate gradients beside direct solutions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unsum.engine.conjugate import by_rows, conjugate_gradients, least_squares


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def definite(n: int) -> Tensor:
    J = random(2 * n, n)
    return J.T @ J


def test_one_right_side_and_several_rows_are_solved_for() -> None:
    A, right = definite(8), random(3, 8, seed=1)
    for b in (right[0], right):
        x, converged = conjugate_gradients(lambda v: v @ A, Tensor.clone, b, 1e-12, 50)
        assert converged
        torch.testing.assert_close(x @ A, b)


def test_a_good_preconditioner_needs_one_iteration() -> None:
    A = definite(8)
    inverse, right = torch.linalg.inv(A), random(8, seed=1)
    x, converged = conjugate_gradients(lambda v: A @ v, lambda v: inverse @ v, right, 1e-9, 1)
    assert converged
    torch.testing.assert_close(A @ x, right)
    assert not conjugate_gradients(lambda v: A @ v, Tensor.clone, right, 1e-9, 1)[1]


def test_least_squares_agree_with_a_direct_solution() -> None:
    J, b = random(30, 12), random(30, seed=1)
    x, converged = least_squares(lambda v: J @ v, lambda u: J.T @ u, J.T @ b, 1e-11, 100)
    assert converged
    torch.testing.assert_close(x, torch.linalg.lstsq(J, b[:, None]).solution[:, 0])


def test_of_all_solutions_the_smallest_is_found() -> None:
    """From zero, and never outside the row space of J."""
    J, b = random(5, 12), random(5, seed=1)
    x, _ = least_squares(lambda v: J @ v, lambda u: J.T @ u, J.T @ b, 1e-11, 100)
    torch.testing.assert_close(x, torch.linalg.pinv(J) @ b)


def test_a_ridge_and_a_preconditioner_of_any_shape() -> None:
    J, b = random(30, 12), random(30, seed=1)
    ridge = torch.arange(1.0, 13.0, dtype=torch.float64)
    matrix = J.T @ J + torch.diag(ridge)
    x, converged = least_squares(
        lambda v: J @ v.flatten(),
        lambda u: (J.T @ u).view(3, 4),
        (J.T @ b).view(3, 4),
        1e-11,
        100,
        ridge=lambda v: ridge.view(3, 4) * v,
        precondition=lambda v: v / matrix.diagonal().view(3, 4),
    )
    assert converged
    torch.testing.assert_close(x.flatten(), torch.linalg.solve(matrix, J.T @ b))


def test_each_of_several_systems_has_a_tolerance_of_its_own() -> None:
    """The second row is solved to its end while the first one is not, whose tolerance is loose."""
    J = torch.stack([random(20, 10), random(20, 10, seed=2)])
    b = random(2, 20, seed=1)

    def push(v: Tensor) -> Tensor:
        return torch.einsum("kmn,kn->km", J, v)

    def pull(u: Tensor) -> Tensor:
        return torch.einsum("kmn,km->kn", J, u)

    tolerance = torch.tensor([[0.5], [1e-10]], dtype=torch.float64)
    x, converged = least_squares(push, pull, pull(b), tolerance, 100, dots=by_rows)
    assert converged
    exact = torch.linalg.lstsq(J[1], b[1][:, None]).solution[:, 0]
    torch.testing.assert_close(x[1], exact, rtol=1e-6, atol=1e-8)


def test_a_direction_that_vanished_leaves_what_was_found() -> None:
    J = torch.eye(3, dtype=torch.float64)
    x, converged = least_squares(lambda v: J @ v, lambda u: J.T @ u, J[0], 0.0, 10)
    assert converged
    assert x.tolist() == [1, 0, 0]
    nothing, _ = least_squares(lambda v: J @ v, lambda u: J.T @ u, 0 * J[0], 1e-9, 10)
    assert nothing.tolist() == [0, 0, 0]


@pytest.mark.parametrize("seconds", [0, 2])
def test_it_ends_when_time_is_over(seconds: int) -> None:
    turns = iter([False] * seconds + [True] * 3)
    J, b = random(30, 12), random(30, seed=1)
    pulls: list[Tensor] = []

    def pull(u: Tensor) -> Tensor:
        pulls.append(u)
        return J.T @ u

    _, converged = least_squares(
        lambda v: J @ v, pull, J.T @ b, 1e-11, 100, over=lambda: next(turns)
    )
    assert not converged
    assert len(pulls) == seconds
