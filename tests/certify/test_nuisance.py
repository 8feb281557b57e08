"""What an unknown that was taken for granted does to features: by chance, and by what the answer
leaves of the gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unsum.certify.doubts.nuisance import left_open


def opened(*, along: float, misfit: float = 1.0) -> float:
    """One sample T = 2 and one column of unit length, 10 long before, of which T follows 0.6 · 0.6:
    it shows as 0.64."""

    def number(value: float) -> Tensor:
        return torch.tensor([[value]], dtype=torch.float64)

    norms = torch.tensor([10.0], dtype=torch.float64)
    return left_open(
        number(1.0), norms, number(0.6), number(0.6), number(along)[0], misfit, number(2.0)
    )


def test_the_error_is_a_deviation_of_the_unknown_or_what_the_gradient_left_says_of_it() -> None:
    """The unknown has a variance of 1 / (0.64 + 1/100) and is (what is left) / 0.65; T moves by 0.6
    of it."""
    assert opened(along=0.0) == pytest.approx(0.6 / 0.65**0.5 / 2)
    assert opened(along=0.5) == pytest.approx(0.6 / 0.65**0.5 / 2)  # less than a deviation
    assert opened(along=6.5) == opened(along=-6.5) == pytest.approx(0.6 * 6.5 / 0.65 / 2)
    assert opened(along=0.0, misfit=3.0) == pytest.approx(0.6 * 3 / (0.64 + 9 / 100) ** 0.5 / 2)
