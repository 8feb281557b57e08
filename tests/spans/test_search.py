"""What a search makes of its roots, by hand: which are one, which confirm each other, and how far
they may be off."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from unsum.spans.basis import LayerSpan
from unsum.spans.search import Roots, blurred, level, predicted_errors, spread


def roots(X: list[list[float]], hits: list[float], misfits: list[float], errors: float = 1e-6) -> Roots:
    found = torch.tensor(X, dtype=torch.float64)
    return Roots(found, torch.full_like(found[:, 0], errors), found.new_tensor(hits), found.new_tensor(misfits))


def span(rows: Tensor, values: list[float], noise: float = 0.01, *, bias: bool = False) -> LayerSpan:
    N = len(rows)
    kept = torch.tensor(values, dtype=torch.float64)
    columns, core = torch.eye(N, dtype=torch.float64), kept.diag()
    return LayerSpan(rows.double(), columns, kept, core, noise, 0.0, bias, noisy=False, quiet=False, full=False)


def test_hits_of_one_sample_add_up_and_the_better_reading_stays() -> None:
    """Of length 1, roots within 1e-4 and ten times both errors are one; 2e-4 apart they are two."""
    first = roots([[1, 0], [0, 1]], [2, 1], [1e-6, 1e-6])
    both = first.joined(roots([[1 + 1e-5, 0], [0, 1 + 2e-4]], [3, 4], [1e-7, 1e-5]))
    assert both.X.tolist() == [[1 + 1e-5, 0], [0, 1], [0, 1 + 2e-4]]
    assert both.hits.tolist() == [5, 1, 4]
    assert both.misfits.tolist() == [1e-7, 1e-6, 1e-5]


def test_only_starts_that_ended_in_the_same_sample_confirm_it() -> None:
    """Of length 5: 4e-4 away is within 5e-4 and a little more for the errors, 1e-3 away is another
    root."""
    one = roots([[3, 4], [5, 0]], [1, 1], [0, 0])
    told = one.confirmed_by(roots([[3, 4.0004], [3, 4.001], [0, 5]], [3, 7, 7], [0, 0, 0]))
    assert told.hits.tolist() == [4, 1]
    assert one.confirmed_by(Roots(one.X[:0], one.errors[:0], one.hits[:0], one.misfits[:0])).hits.tolist() == [1, 1]


def test_however_vague_two_roots_are_a_hundredth_apart_is_not_the_same() -> None:
    vague = roots([[1, 0]], [1], [0], errors=1.0)
    other = roots([[1.02, 0]], [9], [0], errors=1.0)
    assert vague.confirmed_by(other).hits.tolist() == [1]


def test_noise_turns_weak_directions_more() -> None:
    """(3, 4) along singular values 1 and ½ is (3, 8): 0.01 · √4 · √73 / 5 of it is noise."""
    X = torch.tensor([[3.0, 4.0, 0.0, 0.0]], dtype=torch.float64)
    weak = span(torch.eye(2, 4), [1.0, 0.5])
    assert float(level(X, weak)) == pytest.approx(0.02 * 73**0.5 / 5)
    errors = torch.tensor([0.03], dtype=torch.float64)
    assert float(blurred(errors, X, weak)) == pytest.approx((0.03**2 + (0.02 * 73**0.5 / 5) ** 2) ** 0.5)


def test_beside_a_bias_a_sample_is_one_number_longer() -> None:
    """(3, 4) and 1 are √26 long; noise is relative to that, and the error to the sample's own 5."""
    X = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    whole = span(torch.eye(3), [1.0, 1.0, 1.0], bias=True)
    assert float(level(X, whole)) == pytest.approx(0.01 * 3**0.5)
    assert float(blurred(torch.zeros(1).double(), X, whole)) == pytest.approx(0.01 * 3**0.5 * 26**0.5 / 5)


def test_a_predicted_error_is_the_misfit_through_the_inverse() -> None:
    """N = diag(4, 9) scatters by √(¼ + ⅑); a misfit over ten equations less two unknowns is divided
    by √8."""
    N = torch.tensor([[4.0, 0.0], [0.0, 9.0]], dtype=torch.float64)

    def linearize(s: Tensor) -> SimpleNamespace:
        return SimpleNamespace(matrix=N.expand(len(s), 2, 2))

    condition = SimpleNamespace(equations=10, unknowns=2, at_once=2, linearize=linearize)
    misfits = torch.tensor([1e-3, 2e-3, 0.0], dtype=torch.float64)
    found = predicted_errors(condition, torch.zeros(3, 2).double(), misfits)  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx([value * (13 / 36 / 8) ** 0.5 for value in misfits.tolist()])
    singular = torch.zeros(1, 2, 2, dtype=torch.float64)
    assert spread(torch.cat([singular, N[None]])).tolist() == pytest.approx([float("inf"), (13 / 36) ** 0.5])
