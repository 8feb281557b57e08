"""A convolution with its BatchNorm: what it computes and sends, beside autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum import UnsumError
from unsum.network.unit import Unit, as_maps, as_rows, taps


def layers(stride: int = 1, **options: object) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, stride, 1, bias=False, **options), nn.BatchNorm2d(3)
    ).double()
    norm = model[1]
    for values in (norm.weight, norm.bias, norm.running_mean):
        nn.init.uniform_(values, 0.5, 1.5)
    return model


def sent(model: nn.Sequential, maps: Tensor, d: Tensor) -> tuple[unsum.Update, Tensor]:
    """The gradients for ∂loss/∂y = d, and ∂loss/∂maps."""
    maps = maps.clone().requires_grad_()
    names = [name for name, _ in model.named_parameters()]
    found = torch.autograd.grad(model(maps), [*model.parameters(), maps], d)
    return unsum.Update(dict(zip(names, found, strict=False))), found[-1]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_unit_computes_and_sends_what_autograd_does(train: bool, stride: int) -> None:
    model = layers(stride).train(train)
    generator = torch.Generator().manual_seed(1)
    maps = torch.randn(4, 2, 6, 6, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        y = model(maps)
    d = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    update, below = sent(model, maps, d)
    unit = Unit.of(model, update, 1.0, "0", "1")
    torch.testing.assert_close(unit.output(maps), y)
    torch.testing.assert_close(unit.back(d, maps), below)
    assert unit.misfit(d, maps) < 1e-12
    assert unit.misfit(2 * d, maps) == pytest.approx(1.0)
    told, _ = unit.told(maps)
    torch.testing.assert_close(told, unit.times(unit.centered(d), maps))
    assert unit.output_size(maps.shape) == y.shape


def test_a_scaled_gradient_is_divided_by_its_scale() -> None:
    model = layers()
    maps = torch.rand(2, 2, 4, 4, dtype=torch.float64)
    update, _ = sent(model, maps, torch.ones(2, 3, 4, 4, dtype=torch.float64))
    plain, halved = (Unit.of(model, update, scale, "0", "1") for scale in (1.0, 2.0))
    torch.testing.assert_close(2 * halved.grad_beta, plain.grad_beta)


@pytest.mark.parametrize(
    ("options", "names", "sentence"),
    [
        ({}, ("0", "2"), "not a plain convolution with a BatchNorm"),
        ({"dilation": 2}, ("0", "1"), "unusual kernel, dilation or padding"),
        ({"padding_mode": "circular"}, ("0", "1"), "unusual kernel, dilation or padding"),
    ],
)
def test_what_is_no_plain_unit_is_refused(
    options: dict[str, object], names: tuple[str, str], sentence: str
) -> None:
    model = layers(**options)
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    with pytest.raises(UnsumError, match=sentence):
        Unit.of(model, unsum.Update(zeros), 1.0, *names)


def test_a_missing_gradient_is_named() -> None:
    model = layers()
    only = unsum.Update({"0.weight": torch.zeros_like(model[0].weight)})
    with pytest.raises(UnsumError, match=r"holds no gradient of '1\.weight'"):
        Unit.of(model, only, 1.0, "0", "1")


@pytest.mark.parametrize(
    ("corner", "met"), [((0, 0), [4]), ((0, 1), [3, 5]), ((1, 0), [1, 7]), ((1, 1), [0, 2, 6, 8])]
)
def test_taps_that_meet_a_class_of_places(corner: tuple[int, int], met: list[int]) -> None:
    """Stride 2, padding 1: even places meet the middle of a 3×3 kernel, odd ones its sides."""
    assert taps(3, 2, 1, 2, corner) == met


def test_rows_are_places_and_columns_channels() -> None:
    maps = torch.arange(24.0).view(1, 2, 3, 4)
    rows = as_rows(maps)
    assert rows.shape == (12, 2)
    assert rows[5].tolist() == [5.0, 17.0]
    assert torch.equal(as_maps(rows, maps.shape), maps)
