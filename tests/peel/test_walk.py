"""The walk below pooling: from the known input of a block to what every convolution below it
read."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

import unsum
from support.residual_nets import Narrow, client, known_at, read_by
from unsum.peel.residual import reach

KNOWN = "layers.2.1.conv1"


def walked(
    B: int, *, train: bool, block: type = BasicBlock
) -> tuple[Narrow, Tensor, unsum.Update, unsum.Leak]:
    model = Narrow(block, [16, 32, 64])
    images, update = client(model, B, train=train)
    return model, images, update, known_at(model, images, torch.arange(B) % 3, KNOWN)


def error(found: Tensor, true: Tensor) -> float:
    return float(((found - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)).max())


@pytest.mark.parametrize("train", [False, True])
def test_every_convolution_on_the_way_down(train: bool) -> None:
    """Three samples; the last stage's input has 64 places in each class of places, and 128
    equations for them."""
    model, images, update, leak = walked(3, train=train)
    peeled = unsum.peel(model, update, leak, "residual", layer="layers.1.1.conv1")
    names = [layer.name for layer in peeled.layers]
    assert names == ["layers.2.0.conv2", "layers.2.0.conv1", "layers.1.1.conv2", "layers.1.1.conv1"]
    for layer in peeled.layers:
        assert (
            error(peeled.inner[layer.name], read_by(model, images, layer.name))
            < layer.predicted_error
            < 2e-4
        )
    assert bool(peeled.exact.all())
    assert torch.equal(peeled.inner["layers.2.0.downsample.0"], peeled.inner["layers.2.0.conv1"])


def test_maps_that_are_mixed_are_not_certified() -> None:
    model, _, update, leak = walked(3, train=False)
    maps = leak.inner[KNOWN]
    mixed = torch.stack([0.9 * maps[0] + 0.1 * maps[1], *maps[1:]])
    with pytest.raises(unsum.UnsumError, match="explain the gradients above only to"):
        unsum.peel(model, update, replace(leak, inner={KNOWN: mixed}), "residual")


def test_a_gate_that_was_turned_is_not_certified() -> None:
    """An entry of the known maps taken for a zero: the bias gradient below it disagrees."""
    model, images, update, leak = walked(3, train=False)
    maps = leak.inner[KNOWN].clone()
    largest = maps[0].flatten().argmax()
    maps[0].view(-1)[largest] = 0
    try:
        peeled = unsum.peel(model, update, replace(leak, inner={KNOWN: maps}), "residual")
    except unsum.UnsumError:
        return
    true = read_by(model, images, peeled.layers[-1].name)
    assert error(peeled.inputs, true) < float(peeled.errors.max())
    assert not bool(peeled.exact.any())


def test_what_is_not_certified_above_is_not_below() -> None:
    model, _, update, leak = walked(2, train=False)
    assert bool(unsum.peel(model, update, leak, "residual").exact.all())
    peeled = unsum.peel(model, update, replace(leak, exact=False), "residual")
    assert not bool(peeled.exact.any())


def test_missing_layers_end_it_with_their_name() -> None:
    model, _, update, leak = walked(2, train=False)
    sent = {
        name: g for name, g in update.gradients.items() if not name.startswith("layers.1.1.conv2")
    }
    peeled = unsum.peel(model, replace(update, gradients=sent), leak, "residual")
    assert peeled.layers[-1].name == "layers.2.0.conv1"
    assert any("holds no gradient of 'layers.1.1.conv2.weight'" in note for note in peeled.notes)


def test_bottlenecks_go_as_far_as_their_1x1_convolutions_have_channels() -> None:
    model, images, update, leak = walked(2, train=False, block=Bottleneck)
    peeled = unsum.peel(model, update, leak, "residual")
    for layer in peeled.layers:
        assert error(peeled.inner[layer.name], read_by(model, images, layer.name)) < 1e-4
    assert "layers.2.0.conv2" in peeled.inner


@pytest.mark.parametrize(
    ("B", "deepest", "stop"),
    [
        (1, "layers.1.0.conv1", r"'layers\.0\.1\.conv2'.*no batch is small enough"),
        (4, "layers.1.0.conv2", r"'layers\.1\.0\.conv1'.*at most 1 would"),
        (6, "layers.2.0.conv1", r"'layers\.1\.1\.conv2'.*at most 4 would"),
    ],
)
def test_reach_is_counted_beforehand(B: int, deepest: str, stop: str) -> None:
    """Widths 16, 32, 64 on 16², 8², 4²: nine times 32 equations for 64 places of each sample in the
    middle stage."""
    counted = reach(Narrow(BasicBlock, [16, 32, 64]), B, 16)
    assert counted.start == KNOWN
    assert counted.deepest == deepest
    assert re.search(stop, counted.stop)


def test_reach_of_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(unsum.UnsumError, match="no residual blocks"):
        reach(nn.Linear(3, 3), 1, 16)


def test_outputs_tell_what_gradients_leave_open() -> None:
    """Eight samples: 128 places of a class, and as many equations; the known outputs of both
    convolutions do the rest."""
    model, images, update, leak = walked(8, train=True)
    peeled = unsum.peel(model, update, leak, "residual")
    assert peeled.layers[-1].name == "layers.2.0.conv1"
    true = read_by(model, images, "layers.2.0.conv1")
    assert error(peeled.inputs, true) < float(peeled.errors.max()) < 2e-4
    assert bool(peeled.exact.all())
