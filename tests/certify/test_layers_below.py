"""A layer below the head that does not compute what its class promises: nothing that depends on it
is claimed.

Each network is attacked twice, as it is and with one layer changed, so that the claim is seen to be
there without the change.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import unsum
from separate.language_models import batch as texts
from separate.language_models import gpt2
from support import maps
from support.dense import batch, network
from support.vision_transformers import photos, torchvision_vit
from unsum import UnsumError
from unsum.head import trace
from unsum.network.conv_pair import conv_layer


class Halved(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 2)


class HalvedMaps(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 2)


def halve(layer: nn.Module) -> None:
    """The layer as a subclass that halves what it reads; its weights stay.

    The class passes for one of PyTorch's own, so that tracing does not look inside.
    """
    layer.__class__ = Halved if isinstance(layer, nn.Linear) else HalvedMaps
    layer.__class__.__module__ = "torch.nn.modules.linear"


def hook_input(layer: nn.Module) -> None:
    layer.register_forward_pre_hook(lambda _, given: (given[0] / 2, *given[1:]))


def hook_output(layer: nn.Module) -> None:
    layer.register_forward_hook(lambda _, _given, written: 10 * written)


CHANGES = pytest.mark.parametrize("change", [halve, hook_input, hook_output])
Change = Callable[[nn.Module], None]


def certain(model: nn.Module, update: unsum.Update, method: str, **known: int) -> bool:
    try:
        return unsum.separate(model, update, method, **known).exact
    except UnsumError:
        return False


@CHANGES
@pytest.mark.parametrize("name", ["0", "2"])
def test_dense_spans(change: Change, name: str) -> None:
    """The pair below the head is all that the attack computes with."""
    for changed in (False, True):
        model, (x, y) = network(20, 48, 48, 4), batch(5, 20, 4)
        if changed:
            change(model.get_submodule(name))
        assert certain(model, unsum.capture(model, x, y), "spans", batch_size=5) is not changed


@CHANGES
@pytest.mark.parametrize("name", ["0", "2"])
def test_peeled_inputs(change: Change, name: str) -> None:
    """What is below the changed layer is never right: an input of half or a tenth of the size would
    be certain."""
    for changed in (False, True):
        model, (x, y) = network(20, 40, 40, 12), batch(3, 20, 12)
        if changed:
            change(model.get_submodule(name))
        update = unsum.capture(model, x, y)
        leak = unsum.separate(model, update)
        assert leak.exact  # the head is as it was
        try:
            peeled = unsum.peel(model, update, leak)
        except UnsumError:
            assert changed
        else:
            assert (peeled.complete and bool(peeled.exact.any())) is not changed


@CHANGES
@pytest.mark.parametrize("name", ["conv1", "conv2"])
def test_maps(change: Change, name: str) -> None:
    for changed in (False, True):
        model = maps.network(64)
        if changed:
            change(model[1].get_submodule(name))
        sent = maps.client(model, [3, 1], train=False)
        assert certain(sent.model, sent.update, "spans", batch_size=2) is not changed


@pytest.mark.parametrize("change", [hook_input, hook_output])
def test_the_norm_between_maps(change: Change) -> None:
    model = maps.network(64)
    change(model[1].norm1)
    sent = maps.client(model, [3, 1], train=False)
    assert not certain(sent.model, sent.update, "spans", batch_size=2)
    assert conv_layer_of(sent) is None


def conv_layer_of(sent: maps.Client) -> object:
    """The first convolution of the block with its norm, as the attack takes it; None where it is
    none that it knows."""
    graph = trace(sent.model)
    node = next(node for node in graph.nodes if str(node.target).endswith("conv1"))
    return conv_layer(sent.model, node, sent.update)


def test_a_plain_norm_is_taken() -> None:
    assert conv_layer_of(maps.client(maps.network(64), [3, 1], train=False)) is not None


@CHANGES
def test_tokens(change: Change) -> None:
    for changed in (False, True):
        model, (images, _) = torchvision_vit(), photos(1)
        if changed:
            change(model.encoder.layers[0].mlp[0])
        update = unsum.capture(model, images, torch.tensor([3]), train=False)
        found = certain(model, update, "tokens", batch_size=1)
        if not changed:
            assert found
        elif found:  # the replay passes through the layer as it is
            leak = unsum.separate(model, update, "tokens", batch_size=1)
            assert leak.inputs is not None
            assert float((leak.inputs - images).norm() / images.norm()) < 1e-2


@pytest.mark.parametrize("change", [hook_input, hook_output])
def test_text(change: Change) -> None:
    """Texts are replayed through the whole model: what is certain is right, whatever one layer
    computes."""
    for changed in (False, True):
        model, tokens = gpt2(tied=False), texts(2, 5)
        if changed:
            change(model.transformer.h[0].mlp.c_fc)
        update = unsum.capture_text(model, tokens)
        leak = unsum.separate(model, update, "text")
        assert leak.exact or changed
        if leak.exact:
            assert sorted(leak.tokens or []) == sorted(tokens.tolist())
