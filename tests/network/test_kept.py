"""What passes found out is kept while the model stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from unsum.network.kept import while_unchanged


class Counted:
    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> int:
        self.made += 1
        return self.made


def test_a_value_is_made_once_and_under_its_own_name() -> None:
    model, make = nn.Sequential(nn.Linear(40, 40), nn.ReLU()), Counted()
    assert [while_unchanged(model, "a", make) for _ in range(3)] == [1, 1, 1]
    assert while_unchanged(model, "b", make) == 2
    assert while_unchanged(nn.Linear(40, 40), "a", make) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[1].register_forward_hook(lambda *_: None),
        lambda model: setattr(model[1], "negative_slope", 0.3),
        lambda model: model.append(nn.Tanh()),
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(40, 40))),
        lambda model: model.temperature.add_(1.0),
    ],
    ids=["a hook", "a setting", "a layer", "another parameter", "a small tensor"],
)
def test_a_change_of_the_model_makes_it_anew(change: Callable[[nn.Module], object]) -> None:
    model, make = nn.Sequential(nn.Linear(40, 40), nn.LeakyReLU(0.1)), Counted()
    model.register_buffer("temperature", torch.ones(1))
    assert while_unchanged(model, "a", make) == 1
    change(model)
    assert while_unchanged(model, "a", make) == 2


def test_modes_and_training_change_nothing() -> None:
    model, make = nn.Sequential(nn.Linear(40, 40), nn.BatchNorm1d(40)), Counted()
    assert while_unchanged(model, "a", make) == 1
    model.eval()
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert while_unchanged(model, "a", make) == 1
