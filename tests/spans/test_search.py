"""How far the roots of a search may be off, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from unsum.spans.basis import LayerSpan
from unsum.spans.search import blurred, level, predicted_errors, spread


def span(
    rows: Tensor, values: list[float], noise: float = 0.01, *, bias: bool = False
) -> LayerSpan:
    N = len(rows)
    kept = torch.tensor(values, dtype=torch.float64)
    columns, core = torch.eye(N, dtype=torch.float64), kept.diag()
    return LayerSpan(
        rows.double(), columns, kept, core, noise, 0.0, bias, noisy=False, quiet=False, full=False
    )


def test_noise_turns_weak_directions_more() -> None:
    """(3, 4) along singular values 1 and ½ is (3, 8): 0.01 · √4 · √73 / 5 of it is noise."""
    X = torch.tensor([[3.0, 4.0, 0.0, 0.0]], dtype=torch.float64)
    weak = span(torch.eye(2, 4), [1.0, 0.5])
    assert float(level(X, weak)) == pytest.approx(0.02 * 73**0.5 / 5)
    errors = torch.tensor([0.03], dtype=torch.float64)
    assert float(blurred(errors, X, weak)) == pytest.approx(
        (0.03**2 + (0.02 * 73**0.5 / 5) ** 2) ** 0.5
    )


def test_beside_a_bias_a_sample_is_one_number_longer() -> None:
    """(3, 4) and 1 are √26 long; noise is relative to that, and the error to the sample's own 5."""
    X = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    whole = span(torch.eye(3), [1.0, 1.0, 1.0], bias=True)
    assert float(level(X, whole)) == pytest.approx(0.01 * 3**0.5)
    assert float(blurred(torch.zeros(1).double(), X, whole)) == pytest.approx(
        0.01 * 3**0.5 * 26**0.5 / 5
    )


def test_a_predicted_error_is_the_misfit_through_the_inverse() -> None:
    """N = diag(4, 9) scatters by √(¼ + ⅑); a misfit over ten equations less two unknowns is divided
    by √8."""
    N = torch.tensor([[4.0, 0.0], [0.0, 9.0]], dtype=torch.float64)

    def linearize(s: Tensor) -> SimpleNamespace:
        return SimpleNamespace(matrix=N.expand(len(s), 2, 2))

    condition = SimpleNamespace(equations=10, unknowns=2, at_once=2, linearize=linearize)
    misfits = torch.tensor([1e-3, 2e-3, 0.0], dtype=torch.float64)
    found = predicted_errors(condition, torch.zeros(3, 2).double(), misfits)  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx(
        [value * (13 / 36 / 8) ** 0.5 for value in misfits.tolist()]
    )
    singular = torch.zeros(1, 2, 2, dtype=torch.float64)
    assert spread(torch.cat([singular, N[None]])).tolist() == pytest.approx(
        [float("inf"), (13 / 36) ** 0.5]
    )
