"""Convolutions: their equations agree with autograd, and networks of them give their inputs away or
say what is missing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum import UnsumError
from unsum.data import embedded_batch
from unsum.network.activations import TANH
from unsum.network.chain import Step
from unsum.peel import peel
from unsum.peel.conv import ConvSystem, rehearse


def leaky() -> nn.Module:
    return nn.LeakyReLU(0.2)


def cnn6(classes: int, second: int = 36) -> nn.Sequential:
    """R-GAP's CNN6 for 32² pictures; with `second` = 20 its CNN6-d, whose second layer is
    rank-deficient."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 4, 2, 2, bias=False), leaky(),
        nn.Conv2d(12, second, 3, 2, 1, bias=False), leaky(),
        nn.Conv2d(second, 36, 3, 1, 1, bias=False), leaky(),
        nn.Conv2d(36, 36, 3, 1, 1, bias=False), leaky(),
        nn.Conv2d(36, 64, 3, 2, 1, bias=False), leaky(),
        nn.Conv2d(64, 128, 3, 1, 1, bias=False), leaky(),
        nn.Flatten(),
        nn.Linear(3200, classes, bias=False),
    )  # fmt: skip


def lenet(classes: int) -> nn.Sequential:
    """The LeNet of the gradient-leakage papers: sigmoid, weights uniform in ±0.5."""
    model = nn.Sequential(
        nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, 2, 2), nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, 1, 2), nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, 1, 2), nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(768, classes),
    )  # fmt: skip
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def worst_error(found: Tensor, truth: Tensor) -> float:
    true = truth.flatten(1).double()
    return float((torch.cdist(found.flatten(1), true) / true.norm(dim=1)).min(0).values.max())


def small_system(out: int, B: int) -> tuple[ConvSystem, Tensor]:
    torch.manual_seed(0)
    module = nn.Conv2d(2, out, 3, stride=2, padding=1, dilation=1).double()
    x = torch.randn(B, 2, 7, 7, dtype=torch.float64)
    z = module(x)
    delta = torch.randn_like(z)
    (gradient,) = torch.autograd.grad((z * delta).sum(), module.weight)
    W, b = module.weight.detach(), module.bias.detach()
    step = Step("conv", module, TANH, W, b, gradient, None)
    return ConvSystem.of(step, delta, z.detach(), torch.ones_like(z), x.shape), x


def test_the_equations_are_those_of_autograd_and_the_transpose_is_one() -> None:
    system, x = small_system(3, 2)
    z = nn.functional.conv2d(x, system.step.W, system.step.b, stride=2, padding=1)
    torch.testing.assert_close(system.apply(x.flatten()), system.right_side(z))
    r = torch.randn_like(system.right_side(z))
    v = torch.randn_like(x.flatten())
    torch.testing.assert_close(system.apply(v) @ r, system.transpose(r) @ v)


def test_the_rehearsal_counts_what_nothing_determines() -> None:
    system, _ = small_system(3, 2)
    basis = torch.eye(system.unknowns, dtype=torch.float64)
    matrix = torch.stack([system.apply(column) for column in basis], dim=1)
    lost = system.unknowns - int(torch.linalg.matrix_rank(matrix))
    assert lost > 0
    assert abs(rehearse(system, 1e-9, 0).deficiency - lost) < 0.25 * lost
    wide, _ = small_system(12, 2)
    assert rehearse(wide, 1e-9, 0).deficiency == 0


@pytest.mark.long
def test_cnn6_gives_two_photos_away() -> None:
    torch.manual_seed(0)
    model, photos = cnn6(20), embedded_batch(2, image_size=32).images
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight)
    peeled = peel(model, unsum.capture(model, photos, torch.tensor([3, 3])))
    assert peeled.complete
    assert peeled.inputs.shape == photos.shape
    assert worst_error(peeled.inputs, photos) < 1e-3
    assert len(peeled.layers) == 6
    assert all(layer.determined for layer in peeled.layers)


def test_lenet_with_sigmoids_gives_its_photo_away_and_is_sure_of_it() -> None:
    torch.manual_seed(0)
    model, photo = lenet(20), embedded_batch(1, image_size=32).images
    update = unsum.capture(model, photo, torch.tensor([3]))
    peeled = peel(model, update, unsum.separate(model, update, batch_size=1))
    assert bool(peeled.exact.all())
    error = worst_error(peeled.inputs, photo)
    assert error < 1e-3
    assert error < 3 * float(peeled.errors.max())


def test_a_rank_deficient_convolution_is_named_and_ends_the_walk() -> None:
    torch.manual_seed(0)
    model, photos = cnn6(20, second=20), embedded_batch(2, image_size=32).images
    peeled = peel(model, unsum.capture(model, photos, torch.tensor([3, 4])))
    assert not peeled.complete
    assert not bool(peeled.exact.any())
    last = peeled.layers[-1]
    assert last.name == "2"
    assert last.unknowns == 2 * 12 * 17 * 17
    assert last.equations == 2 * 20 * 9 * 9 + 20 * 12 * 9
    assert last.deficiency == last.unknowns - last.equations
    assert any(
        "'2' does not determine its input" in note and "1536 of them free" in note
        for note in peeled.notes
    )


def test_convolutions_and_linear_layers_mix_with_relu_and_bias() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5, 1, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 12 * 12, 80),
        nn.ReLU(),
        nn.Linear(80, 20),
    )
    x = torch.rand(2, 1, 12, 12)
    update = unsum.capture(model, x, torch.tensor([0, 1]))
    peeled = peel(model, update, unsum.separate(model, update, batch_size=2), shape=(1, 12, 12))
    assert [layer.name for layer in peeled.layers] == ["3", "0"]
    assert bool(peeled.exact.all())
    assert worst_error(peeled.inputs, x) < 1e-3


def test_gelu_over_a_convolution_is_refused_by_name() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1), nn.GELU(), nn.Flatten(), nn.Linear(16 * 64, 20)
    )
    peeled = peel(model, unsum.capture(model, torch.rand(2, 1, 8, 8), torch.tensor([0, 1])))
    assert not peeled.complete
    assert any(
        "GELU after the convolution '0' has two inputs for one output" in note
        for note in peeled.notes
    )


def test_a_size_that_no_square_fits_must_be_said() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 1, 1), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 6 * 10, 20)
    )
    x = torch.rand(1, 1, 6, 10)
    update = unsum.capture(model, x, torch.tensor([0]))
    with pytest.raises(UnsumError, match="say shape="):
        peel(model, update)
    assert worst_error(peel(model, update, shape=(1, 6, 10)).inputs, x) < 1e-3
