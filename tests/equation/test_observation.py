"""What is known of a gradient once it is factored: its factors, and weights from the noise model by
hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import unsum
from unsum.equation.equation import Equation, Unknowns
from unsum.equation.observation import noise_weights, observe
from unsum.head import Head


def test_weights_by_hand() -> None:
    """p = ½ errs by ½ (1 + ½ · 2 · norm), and by 1 where the target is: 1, 2 and √(1 + 1), 2, times
    ½ · 2 · 0.1."""
    zero = torch.zeros(1, 2, dtype=torch.float64)
    Y = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    equation = Equation(zero, zero[0], torch.zeros(2, 1).double(), torch.ones(2).double(), Y=Y)
    at = Unknowns.of(torch.tensor([[2.0]], dtype=torch.float64), 0.5)
    level, norms = torch.tensor([0.1, 0.15]).double(), torch.tensor([1.0, 3.0]).double()
    found = noise_weights(equation, at, level, norms, 0.1)
    assert found.tolist() == pytest.approx(
        [1 / math.sqrt(0.01 + 0.02), 1 / math.sqrt(0.0225 + 0.04)]
    )


def test_factors_give_the_gradient_back() -> None:
    torch.manual_seed(0)
    model, features = nn.Linear(32, 12), torch.randn(3, 32)
    update = unsum.capture(model, features, torch.tensor([1, 5, 5]))
    head = Head.of(model, update)
    seen = observe(head, None)
    assert seen.rank == 3
    assert torch.allclose(seen.U @ seen.A, update.gradients["weight"].double(), atol=1e-7)
    assert torch.allclose(seen.A @ seen.A.T, torch.eye(3).double(), atol=1e-9)
    assert torch.allclose(seen.K, seen.A @ model.weight.T.double(), atol=1e-9)
    equation, P = seen.equation(), (features @ model.weight.T + model.bias).double().softmax(1)
    Y = torch.nn.functional.one_hot(torch.tensor([1, 5, 5]), 12).double()
    assert torch.allclose(equation.U[:, -1] / equation.beta, (P - Y).mean(0), atol=1e-6)
    assert seen.inputs == 32
    assert seen.plain_alpha(3, None) == pytest.approx(1 / 3)
