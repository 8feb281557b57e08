"""Which layers can be undone is found by data flow, and what cannot is named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import unsum
from unsum import UnsumError
from unsum.network.chain import find_chain
from unsum.peel import obstacle, peel


class Shuffled(nn.Module):
    """Layers registered in another order than they run in, with functional activations."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(40, 20), nn.Linear(48, 60), nn.Linear(60, 40)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.flatten(1)))
        h = functional.leaky_relu(self.middle(h), 0.2)
        return self.last(self.drop(h))


def capture(model: nn.Module, x: Tensor, *, train: bool = True) -> unsum.Update:
    return unsum.capture(model, x, torch.arange(len(x)), train=train)


def test_the_order_of_the_forward_pass_counts() -> None:
    torch.manual_seed(0)
    model, x = Shuffled().eval(), torch.rand(3, 3, 4, 4)
    update = capture(model, x, train=False)
    chain = find_chain(model, update)
    assert [step.name for step in chain.steps] == ["first", "middle", "last"]
    assert [step.activation.name for step in chain.steps] == ["Tanh", "LeakyReLU", "none"]
    assert chain.complete
    assert chain.flattens
    peeled = peel(model, update)
    assert peeled.inputs.shape == x.shape
    assert (
        float(torch.cdist(peeled.inputs.flatten(1), x.flatten(1).double()).min(0).values.max())
        < 1e-3
    )


def test_dropout_that_is_on_is_named() -> None:
    torch.manual_seed(0)
    model, x = Shuffled(), torch.rand(3, 3, 4, 4)
    assert (
        obstacle(model, capture(model, x))
        == "the layer 'drop' (Dropout that is on) cannot be undone"
    )


def test_an_unsupported_layer_is_named_and_what_lies_above_it_is_kept() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(48, 60),
        nn.LayerNorm(60),
        nn.Linear(60, 50),
        nn.Tanh(),
        nn.Linear(50, 20),
    )
    x = torch.rand(4, 3, 4, 4)
    peeled = peel(model, capture(model, x))
    assert not peeled.complete
    assert [layer.name for layer in peeled.layers] == ["3"]
    assert (
        "Peeling ended at the input of '3': the layer '2' (LayerNorm) cannot be undone."
        in peeled.notes
    )
    truth = model[:3](x).detach().double()
    assert float(torch.cdist(peeled.inputs, truth).min(0).values.max()) < 1e-3
    assert bool(peeled.exact.all())


def test_a_second_path_and_a_missing_gradient_are_named() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(20, 20), nn.Linear(20, 20)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(x + self.a(x))

    model, x = Residual(), torch.rand(2, 20)
    assert obstacle(model, capture(model, x)) == "the operation 'add' cannot be undone"
    plain = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
    partial = unsum.Update(
        {k: v for k, v in capture(plain, x).gradients.items() if not k.startswith("0.")}
    )
    assert obstacle(plain, partial) == "the update lacks the gradient of '0'"


def test_a_shape_that_does_not_fit_is_refused() -> None:
    model, x = Shuffled().eval(), torch.rand(2, 3, 4, 4)
    with pytest.raises(UnsumError, match="holds 75 numbers, but the first layer takes 48"):
        peel(model, capture(model, x, train=False), shape=(3, 5, 5))
