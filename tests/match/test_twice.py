"""Layers that are cheap to differentiate twice: the same numbers as torch's own."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from unsum.gradients import quiet
from unsum.match.twice import cheap_twice


class Residual(nn.Module):
    """Strides, groups, dilation, a bias, an in-place sum, a norm without weights: what a network may have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 2, 2, groups=4, bias=False), nn.BatchNorm2d(8, affine=False))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(x)
        y += x
        return self.head(y.sigmoid().mean((2, 3)))


def pulled_back(model: nn.Module, images: Tensor, weights: list[Tensor], *, cheap: bool) -> list[Tensor]:
    """Logits, gradients by all parameters, and the derivative of their weighted sum by the images."""
    images = images.clone().requires_grad_()
    names = [name for name, _ in model.named_parameters()]
    with quiet(model, names), cheap_twice(model) if cheap else nullcontext():
        logits = model(images)
        errors = logits.softmax(1) - torch.eye(5, dtype=logits.dtype)[: len(logits)]
        found = torch.autograd.grad(logits, list(model.parameters()), errors, create_graph=True)
        return [logits, *found, *torch.autograd.grad(found, images, weights)]


@pytest.mark.parametrize("train", [True, False])
def test_first_and_second_derivatives_are_torchs_own(train: bool) -> None:
    torch.manual_seed(0)
    model = Residual().double().train(train)
    images = torch.rand(4, 3, 9, 11, dtype=torch.float64)
    weights = [torch.randn_like(p) for p in model.parameters()]
    own, ours = (pulled_back(model, images, weights, cheap=cheap) for cheap in (False, True))
    assert own[-1].abs().max() > 1e-3  # there is something to compare
    for expected, found in zip(own, ours, strict=True):
        assert (expected - found).abs().max() < 1e-12 * (1 + expected.abs().max())


def test_the_model_has_its_own_layers_again() -> None:
    model = Residual()
    with cheap_twice(model):
        assert "forward" in vars(model.first[0])
    assert not any("forward" in vars(module) for module in model.modules())
