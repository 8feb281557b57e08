"""The span of what a layer read: its own inputs lie inside, others do not."""

from __future__ import annotations

import pytest
import torch

from unsum.equation.span import span_of


@pytest.mark.parametrize("shape", [(12, 40), (60, 40)])
def test_inputs_lie_inside(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    outputs, H = shape
    inputs, errors = torch.randn(4, H), torch.randn(4, outputs)
    span = span_of(errors.T @ inputs)
    assert span.rank == 4
    assert span.room == H - 4
    assert not span.noisy
    assert not span.full
    assert bool((span.outside(inputs) < 1).all())
    assert bool((span.outside(torch.randn(3, H)) > 100).all())
    expected = torch.linalg.svdvals(errors.T @ inputs)[:4].double()
    assert torch.allclose(span.singular_values, expected, rtol=1e-4)


def test_noise_is_measured() -> None:
    torch.manual_seed(1)
    gradient = torch.randn(30, 2) @ torch.randn(2, 80) + 1e-2 * torch.randn(30, 80)
    span = span_of(gradient)
    assert span.rank == 2
    assert span.noisy
    assert 0.3e-2 < span.deviation < 1e-2  # 28 directions of 80 columns hold it
    assert span.clearness == pytest.approx(float(span.singular_values[-1]) / span.deviation)
