"""FurtherUnknown unknowns by hand, under a squared error: G = s l + b − y is linear in the length
s."""

from __future__ import annotations

import torch

from unsum.certify.further import FurtherUnknown, all_others, further_unknowns, lengths
from unsum.equation.equation import Equation, Linearized, Unknowns
from unsum.losses import SquaredError


def test_what_each_changes() -> None:
    K, b = torch.tensor([[1.0, 2.0, 0.0]]).double(), torch.tensor([0.5, 0.0, 0.0]).double()
    Y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).double()
    equation = Equation(
        K, b, torch.zeros(3, 2).double(), torch.ones(3).double(), 1.0, Y, loss=SquaredError()
    )
    T = torch.tensor([[3.0], [-1.0]]).double()
    here = Linearized(equation, Unknowns.of(T, 0.5))
    first, second = lengths(here)
    assert torch.allclose(first, T @ K, atol=1e-9)
    assert torch.allclose(second, torch.zeros_like(second), atol=1e-6)
    found = further_unknowns(here, all_others(here))
    logits = T @ K + b
    assert torch.allclose(found[FurtherUnknown.TEMPERATURE], Y - 2 * logits)  # −G − l
    assert torch.allclose(found[FurtherUnknown.TARGET_SIZE], -Y)
    assert torch.allclose(found[FurtherUnknown.FLOOR], 3 * Y - 1)
    assert torch.equal(found[FurtherUnknown.EXCHANGED], Y[0] - Y)
    assert torch.equal(found[FurtherUnknown.EXCHANGED + 1], Y[1] - Y)
    near = further_unknowns(here, torch.tensor([[1, 0]]))
    assert torch.equal(
        near[FurtherUnknown.EXCHANGED :], torch.stack([Y[1] - Y[0], Y[0] - Y[1]])[None]
    )
