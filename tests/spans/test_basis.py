"""The two spaces of a gradient: their number of directions told from rounding and from noise, by
all values and by a sketch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unsum.spans import basis


def gradient(m: int, n: int, B: int) -> tuple[Tensor, Tensor]:
    """∇W and ∇b of B samples whose sizes differ a thousandfold, in float32."""
    generator = torch.Generator().manual_seed(0)
    D = torch.randn(B, m, generator=generator) * torch.logspace(0, -3, B)[:, None]
    return D.T @ torch.randn(B, n, generator=generator), D.sum(0)


@pytest.mark.parametrize(("m", "n"), [(1040, 1200), (1200, 1040)])
@pytest.mark.parametrize("biased", [True, False])
def test_a_sketch_of_a_large_matrix_is_what_all_of_it_gives(m: int, n: int, biased: bool) -> None:
    matrix, bias = gradient(m, n, 20)
    wide = m <= n
    values, vectors, rest = basis._spectrum(matrix, bias if biased else None, wide=wide)
    squares, every = torch.linalg.eigh(basis._gram(matrix, bias if biased else None, wide=wide))
    assert len(values) < m  # a sketch it is
    assert values[:20].tolist() == pytest.approx(squares.flip(0)[:20].sqrt().tolist(), rel=1e-9)
    space = every.flip(1)[:, :20]
    assert (
        float(torch.linalg.matrix_norm(vectors[:, :20] - space @ (space.T @ vectors[:, :20]), 2))
        < 1e-8
    )
    assert rest < 1e-11 * float(squares.sum())


@pytest.mark.parametrize(("m", "n"), [(120, 200), (200, 120), (160, 160)])
def test_noise_is_measured_and_the_directions_above_it_counted(m: int, n: int) -> None:
    matrix = gradient(m, n, 10)[0]
    quiet = torch.linalg.svdvals(matrix.double())
    assert basis._above_noise(quiet, m, n, basis.rounding_of(matrix), 0.0) == (
        basis.rounding_of(matrix),
        10,
    )
    noisy = matrix + 1e-4 * torch.randn(m, n, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(noisy.double())
    noise, found = basis._above_noise(values, m, n, basis.rounding_of(noisy), 0.0)
    assert noise == pytest.approx(1e-4, rel=0.03)
    assert found == 10
