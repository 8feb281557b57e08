"""Any residual by its whole Jacobian, and what a normal matrix costs, by hand."""

from __future__ import annotations

import pytest
import torch

from unsum.equation.levenberg import SMALL, Dense, can_be_dense, seconds_per_iteration


def test_a_residual_and_its_derivatives() -> None:
    """r = (x², x y) at (2, 3): J = [[4, 0], [3, 2]]."""
    at = torch.tensor([2.0, 3.0], dtype=torch.float64)
    here = Dense(lambda s: torch.stack([s[0] ** 2, s[0] * s[1]]), at)
    assert float(here.cost) == 16 + 36
    assert here.jacobian.tolist() == [[4.0, 0.0], [3.0, 2.0]]
    assert here.gradient.tolist() == [16 + 18, 12]
    assert here.normal_matrix.tolist() == [[25.0, 6.0], [6.0, 4.0]]
    fixed = Dense(here.function, at, torch.tensor([False, True]))
    assert fixed.jacobian.tolist() == [[4.0, 0.0], [3.0, 0.0]]


def test_a_normal_matrix_is_formed_where_it_is_small() -> None:
    """2 C n² + n³ / 3 operations: 9.5e8 for 655 unknowns under 1000 classes, 1.06e9 for 690."""
    assert can_be_dense(655, 1000)
    assert not can_be_dense(690, 1000)
    assert seconds_per_iteration(SMALL, 100) == pytest.approx(
        5e-4 + (2 * 100 * 300**2 + 300**3 / 3) / 1e10
    )
    assert seconds_per_iteration(10_000, 100) == pytest.approx(
        100 * (2e-4 + 8 * 100 * 10_000 / 5e9)
    )
