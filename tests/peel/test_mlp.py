"""Fully connected networks: the inputs come back, and the certificate never says so when they did
not."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unsum
import unsum.data
from unsum.head import collect_features
from unsum.peel import Peeled, peel

ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.2),
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
}
KINDS = ("distinct", "random", "same", "smooth", "mixup")


def network(
    widths: list[int], activation: str = "relu", *, bias: bool = False, gain: float | None = None
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (n, m) in enumerate(itertools.pairwise(widths)):
        layers.append(nn.Linear(n, m, bias=bias))
        if gain is not None:
            nn.init.normal_(layers[-1].weight, 0, gain / n**0.5)
        if i < len(widths) - 2:
            layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def targets(B: int, C: int, kind: str) -> Tensor:
    labels = torch.randint(C, (B,))
    if kind == "distinct":
        labels = torch.randperm(C)[:B]
    if kind == "same":
        labels = torch.full((B,), 3)
    rows = nn.functional.one_hot(labels, C).float()
    if kind == "smooth":
        rows = unsum.smooth_labels(rows, 0.15, C)
    if kind == "mixup":
        weight = torch.rand(B, 1)
        rows = weight * rows + (1 - weight) * rows.roll(1, 0)
    return rows


def distances(peeled: Peeled, truth: Tensor) -> Tensor:
    """(found, true) relative distances."""
    true = truth.flatten(1).double()
    return torch.cdist(peeled.inputs.flatten(1).double(), true) / true.norm(dim=1)


def peeled_from(model: nn.Module, update: unsum.Update, **known: object) -> Peeled:
    """Of networks without bias nothing is exact unless the loss is declared: a temperature would
    change the inputs' length."""
    return peel(model, update, unsum.separate(model, update, loss="cross-entropy", **known))


def assert_recovered(peeled: Peeled, truth: Tensor, tolerance: float = 1e-4) -> None:
    assert peeled.inputs.shape == truth.shape
    assert peeled.complete
    assert bool(peeled.exact.all()), peeled.notes
    apart = distances(peeled, truth)
    assert float(apart.min(0).values.max()) < tolerance  # every true input is there
    assert float(apart.min(1).values.max()) < tolerance


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    hidden=st.lists(st.sampled_from([20, 40, 80]), min_size=1, max_size=3),
    D=st.sampled_from([12, 48, 108]),
    B=st.integers(1, 6),
    C=st.sampled_from([12, 20, 40]),
    kind=st.sampled_from(KINDS),
    bias=st.booleans(),
    gain=st.sampled_from([None, 1.6]),
)
def test_the_certificate_never_lies(
    seed: int,
    activation: str,
    hidden: list[int],
    D: int,
    B: int,
    C: int,
    kind: str,
    bias: bool,
    gain: float | None,
) -> None:
    torch.manual_seed(seed)
    model = network([D, *hidden, C], activation, bias=bias, gain=gain)
    x = torch.rand(B, D)
    update = unsum.capture(model, x, targets(B, C, kind))
    leak = unsum.separate(model, update, loss="cross-entropy")
    if leak.predicted_error == torch.inf:  # nothing to continue, and it says so
        return
    peeled = peel(model, update, leak)
    errors = distances(peeled, x).min(1).values
    claimed = peeled.exact
    assert bool((errors[claimed] < 1e-3).all())
    assert bool((errors[claimed] < 10 * peeled.errors[claimed] + 1e-5).all())
    if bool(claimed.all()):
        assert len(peeled.inputs) == B


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_a_whole_batch_of_pictures_comes_back(kind: str, activation: str) -> None:
    torch.manual_seed(1)
    model = network([3 * 16 * 16, 160, 96, 60, 30], activation, gain=1.5)
    x = torch.rand(6, 3, 16, 16)
    assert_recovered(
        peeled_from(model, unsum.capture(model, x, targets(6, 30, kind)), batch_size=6), x
    )


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation_is_undone_with_bias(activation: str) -> None:
    torch.manual_seed(2)
    model = network([3 * 8 * 8, 96, 64, 20], activation, bias=True, gain=1.5)
    x = torch.rand(4, 3, 8, 8)
    assert_recovered(
        peeled_from(model, unsum.capture(model, x, torch.tensor([0, 0, 1, 2])), batch_size=4),
        x,
        1e-3,
    )


def test_fresh_networks_come_back_although_their_features_hardly_tell_samples_apart() -> None:
    torch.manual_seed(0)
    # default initialization: logits hardly differ between samples
    model = network([3 * 16 * 16, 512, 256, 128, 40])
    x = torch.rand(6, 3, 1, 1) + 0.5 * torch.rand(6, 3, 16, 16)
    update = unsum.capture(model, x, torch.full((6,), 3))
    leak = unsum.separate(model, update, loss="cross-entropy")
    assert leak.estimate > 1e-5  # six of one label, to five digits at best
    peeled = peel(model, update, leak)
    assert_recovered(peeled, x, 1e-5)
    assert any("rounds through all layers" in note for note in peeled.notes)


def test_the_papers_single_photo() -> None:
    """12288-4096-1024-256-17 without bias and one 64² photo: soft-label recovery reports 51.2
    dB."""
    torch.manual_seed(0)
    model = network([12288, 4096, 1024, 256, 17])
    photo = unsum.data.embedded_batch(1, image_size=64).images
    soft = 0.7 * nn.functional.one_hot(torch.tensor([4]), 17) + 0.3 / 17
    peeled = peeled_from(model, unsum.capture(model, photo, soft), batch_size=1)
    assert_recovered(peeled, photo, 1e-5)
    mean_square = float((peeled.inputs - photo).square().mean())
    assert mean_square < 1e-10  # 100 dB


def test_float64_gradients_give_float64_inputs() -> None:
    torch.manual_seed(3)
    model = network([48, 60, 50, 20], "tanh", gain=1.5).double()
    x = torch.rand(4, 3, 4, 4, dtype=torch.float64)
    update = unsum.capture(model, x, torch.arange(4))
    before = {name: g.clone() for name, g in update.gradients.items()}
    # what a separator found in float32 is enough to begin with
    coarse = copy.deepcopy(model).float()
    leak = unsum.separate(coarse, update.map(lambda _, g: g.float()), loss="cross-entropy")
    peeled = peel(model, update, dataclasses.replace(leak, exact=False))
    assert_recovered(peeled, x, 1e-8)
    for name, gradient in update.gradients.items():
        torch.testing.assert_close(gradient, before[name], rtol=0, atol=0)


def test_a_clipped_gradient_is_scaled_back() -> None:
    torch.manual_seed(4)
    model = network([48, 80, 60, 30], gain=1.5)
    x = torch.rand(4, 3, 4, 4)
    update = unsum.capture(model, x, torch.arange(4), defenses=unsum.Clip(0.01))
    assert_recovered(peeled_from(model, update), x, 1e-3)


def test_a_sum_over_the_batch_is_no_mean() -> None:
    torch.manual_seed(5)
    model = network([48, 80, 60, 30], gain=1.5)
    x = torch.rand(3, 3, 4, 4)
    mean = unsum.capture(model, x, torch.arange(3))
    summed = unsum.Update({name: 3 * g for name, g in mean.gradients.items()}, reduction="sum")
    assert_recovered(peeled_from(model, summed), x)


def test_noise_takes_the_certificate_away() -> None:
    torch.manual_seed(6)
    model = network([48, 80, 60, 30], gain=1.5)
    x = torch.rand(3, 48)
    update = unsum.capture(model, x, torch.arange(3), defenses=unsum.Noise(1e-3))
    peeled = peel(model, update)
    assert not bool(peeled.exact.any())
    assert bool((peeled.errors > 1e-3).all())


def test_a_layer_narrower_than_the_batch_is_named_with_what_it_lacks() -> None:
    torch.manual_seed(7)
    model = network([48, 40, 3, 40, 30], "tanh", gain=1.5)
    x = torch.rand(5, 48)
    update = unsum.capture(model, x, torch.arange(5))
    peeled = peel(model, update)
    assert not bool(peeled.exact.any())
    narrow = next(layer for layer in peeled.layers if layer.name == "3")
    assert narrow.deficiency == 2
    assert any(
        "'3' does not determine its input: 5 samples leave only 3" in note for note in peeled.notes
    )


def test_inputs_come_in_the_order_of_the_separation() -> None:
    """Every input, sent through the network again, gives the features of its own row of the
    leak."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 30)
    )
    nn.init.normal_(model[4].weight, std=0.3)
    x = torch.rand(5, 60)
    update = unsum.capture(model, x, torch.tensor([9, 2, 2, 17, 5]))
    leak = unsum.separate(model, update, batch_size=5)
    peeled = peel(model, update, leak)
    assert bool(peeled.exact.all())
    features = collect_features(model, peeled.inputs.float())
    assert float(((features - leak.features).norm(dim=1) / leak.features.norm(dim=1)).max()) < 1e-3


def test_a_single_linear_is_peeled_by_the_separation_alone() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(64, 20), 3 * torch.rand(3, 64)
    peeled = peel(model, unsum.capture(model, x, torch.arange(3)))
    assert peeled.complete
    assert float(torch.cdist(peeled.inputs, x.double()).min(0).values.max()) < 1e-3
