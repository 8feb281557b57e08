"""The damped normal equations by conjugate gradients, against the matrix itself."""

from __future__ import annotations

import torch

from unsum.equation.conjugate import NormalSystem, _ridge_inverse
from unsum.equation.equation import Equation, Linearized, Unknowns


def test_the_same_as_by_the_matrix_for_many_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    K = torch.randn(2, 3, 12, generator=generator, dtype=torch.float64)
    U = torch.randn(2, 12, 4, generator=generator, dtype=torch.float64)
    weight = 0.5 + torch.rand(2, 12, generator=generator, dtype=torch.float64)
    equation = Equation(
        K,
        torch.zeros(12).double(),
        U,
        weight,
        torch.ones(2).double(),
        floor_free=True,
        alpha_free=True,
    )
    at = Unknowns.of(torch.randn(2, 3, 3, generator=generator, dtype=torch.float64), 0.3, 0.01)
    here = Linearized(equation, at)
    diagonal = 0.1 * here.normal_diagonal
    right = torch.randn(2, 5, 11, generator=generator, dtype=torch.float64)
    system = NormalSystem.of(here, diagonal, torch.tensor([0.1, 0.1]).double())
    found, converged = system.solve(right, 1e-10, 300)
    expected = torch.linalg.solve(here.normal_matrix + torch.diag_embed(diagonal), right.mT).mT
    assert converged
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-8)
    assert not system.solve(right, 1e-10, 2)[1]


def test_the_preconditioner_has_as_much_ridge_as_it_takes() -> None:
    whole = torch.tensor([[4.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert torch.allclose(
        _ridge_inverse(whole, 0.25), torch.diag(torch.tensor([0.2, 0.8]).double())
    )
    singular = torch.ones(2, 2, dtype=torch.float64)
    both = _ridge_inverse(torch.stack([whole, singular]), torch.tensor([0.25, 0.0]).double())
    assert torch.allclose(both[0], torch.diag(torch.tensor([0.2, 0.8]).double()))
    assert bool(both[1].isfinite().all())
    assert float(both[1].abs().max()) > 1e6
