"""Products in float64, block by block: the values of the plain products."""

from __future__ import annotations

import pytest
import torch

from unsum.network import products
from unsum.network.products import left_product, residual_norm, right_product


@pytest.fixture(params=[1, 7, 1 << 18], ids=["one row at a time", "uneven blocks", "one block"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_BLOCK", request.param)


@pytest.mark.usefixtures("block")
def test_blocks_give_what_the_whole_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(5, 3, generator=generator)
    mixing = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    basis = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    product, squares = left_product(mixing, matrix)
    torch.testing.assert_close(product, mixing @ matrix.double())
    assert squares == pytest.approx(float(matrix.double().square().sum()))
    torch.testing.assert_close(right_product(matrix, basis), matrix.double() @ basis.T)
    rest = residual_norm(matrix, mixing, basis)
    assert rest == pytest.approx(float((matrix.double() - mixing.T @ basis).norm()))


def test_float32_entries_are_added_in_float64() -> None:
    """1 + 2⁻³⁰ is 1 in float32."""
    matrix = torch.tensor([[1.0], [2.0**-30]])
    product, _ = left_product(torch.ones(1, 2, dtype=torch.float64), matrix)
    assert float(product) == 1 + 2**-30
