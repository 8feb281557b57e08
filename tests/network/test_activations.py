"""Activations: their inverses, branches and slopes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unsum.network.activations import (
    GELU,
    RELU,
    SIGMOID,
    SILU,
    TANH,
    Activation,
    activation_of,
    bisect,
    elu,
    leaky_relu,
)


@pytest.mark.parametrize("activation", [GELU, SILU, TANH, SIGMOID, leaky_relu(0.1), elu(0.7)])
def test_activations_are_inverted_on_the_right_branch(activation: Activation) -> None:
    z = torch.linspace(-3, 3, 601, dtype=torch.float64)
    branches = activation.branches(activation.function(z))
    nearest = torch.stack([(branch - z).abs() for branch in branches]).min(0).values
    # At the minimum of a folded activation the slope is 0, where y has half the digits of z.
    assert float(nearest.max()) < 1e-7
    assert len(branches) == (2 if activation.family == "folded" else 1)
    step = 1e-6
    numeric = (activation.function(z + step) - activation.function(z - step)) / (2 * step)
    away = z.abs() > 1e-3  # from LeakyReLU's kink
    torch.testing.assert_close(activation.slope(z)[away], numeric[away], rtol=1e-6, atol=1e-8)


def test_relu_lets_positive_values_through_with_slope_one() -> None:
    y = torch.tensor([2.0, -1.0, 0.0])
    assert RELU.branches(y)[0].tolist() == [2.0, -1.0, 0.0]
    assert RELU.slope(y).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("module", "name", "at_minus_two"),
    [
        (nn.LeakyReLU(0.3), "LeakyReLU", -0.6),
        (nn.ELU(0.5), "ELU", 0.5 * (torch.tensor(-2.0).exp().item() - 1)),
        (nn.GELU(approximate="tanh"), "GELU", -0.0454),
        (nn.Tanh(), "Tanh", -0.964028),
    ],
)
def test_a_module_is_recognized_with_its_settings(
    module: nn.Module, name: str, at_minus_two: float
) -> None:
    activation = activation_of(module)
    assert activation is not None
    assert activation.name == name
    assert float(activation.function(torch.tensor(-2.0))) == pytest.approx(at_minus_two, abs=1e-4)


@pytest.mark.parametrize("module", [nn.Softmax(1), nn.LeakyReLU(-0.1), nn.Hardtanh()])
def test_what_cannot_be_undone_is_no_activation(module: nn.Module) -> None:
    assert activation_of(module) is None


def test_bisection_finds_both_directions() -> None:
    low, high = torch.tensor(0.0).double(), torch.tensor(3.0).double()
    y = torch.tensor([2.0, 0.25], dtype=torch.float64)
    assert bisect(torch.square, y, low, high, rising=True).tolist() == pytest.approx([2**0.5, 0.5])
    falling = bisect(lambda z: 1 / (1 + z), torch.tensor([0.5]).double(), low, high, rising=False)
    assert falling.tolist() == pytest.approx([1.0])
