"""Residual blocks are found by their parts, and believed after a pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

import unsum
from support.residual_nets import Narrow, client, read_by
from unsum.network.residual_blocks import block_names, convolutions, find_blocks, gradient_above

NAMES = [f"layers.{stage}.{block}" for stage in range(3) for block in range(2)]


def small() -> tuple[Narrow, unsum.Update, Tensor]:
    model = Narrow(BasicBlock, [4, 6, 8], pooled=False)
    images, update = client(model, 2, train=False)
    return model, update, images


def test_blocks_and_their_convolutions_are_named() -> None:
    model, _, _ = small()
    assert block_names(model) == NAMES
    plain = (["layers.0.0.conv1", "layers.0.0.conv2"], None)
    assert convolutions(model, "layers.0.0") == plain
    both = ["layers.1.0.conv1", "layers.1.0.conv2"], "layers.1.0.downsample.0"
    assert convolutions(model, "layers.1.0") == both


def test_a_block_computes_what_the_model_computes() -> None:
    model, update, images = small()
    blocks = find_blocks(model, update, 1.0, 16, None)
    assert [block.name for block in blocks.below] == NAMES
    entering = read_by(model, images, "layers.1.0.conv1")
    block = blocks.below[2]
    read, before = block.passed(entering)
    torch.testing.assert_close(
        read[1], read_by(model, images, "layers.1.0.conv2"), rtol=1e-4, atol=1e-5
    )
    out = read_by(model, images, "layers.1.1.conv1")
    torch.testing.assert_close(before[-1].relu(), out, rtol=1e-4, atol=1e-5)
    assert [tuple(size) for size in block.sizes(2)] == [(2, 4, 16, 16), (2, 6, 8, 8)]


def test_a_block_with_something_besides_ends_the_walk() -> None:
    class Scaled(BasicBlock):
        def forward(self, x: Tensor) -> Tensor:
            return 1.1 * super().forward(x)

    model, update, _ = small()
    model.layers[1][1].__class__ = Scaled
    blocks = find_blocks(model, update, 1.0, 16, None)
    assert [block.name for block in blocks.below] == NAMES[4:]
    assert blocks.stop == "'layers.1.1' computes more than its convolutions and its shortcut"


def test_what_is_known_must_be_a_block_s_input() -> None:
    model, update, _ = small()
    with pytest.raises(unsum.UnsumError, match="'conv1' is no residual block"):
        find_blocks(model, update, 1.0, 16, "conv1")


def test_the_gradient_above_the_last_block_is_autograd_s() -> None:
    model = Narrow(BasicBlock, [4, 6, 8])
    images, labels = torch.rand(3, 3, 16, 16), torch.arange(3)
    model.eval()
    out = model.layers(model.relu(model.bn1(model.conv1(images)))).detach().requires_grad_()
    loss = nn.functional.cross_entropy(model.fc(model.pool(out).flatten(1)), labels)
    (wanted,) = torch.autograd.grad(loss, out)
    targets = nn.functional.one_hot(labels, 10).double()
    found = gradient_above(model, "layers.2.1", out.detach().double(), targets, 16, mean=True)
    torch.testing.assert_close(found.float(), wanted, rtol=1e-4, atol=1e-7)
    summed = gradient_above(model, "layers.2.1", out.detach().double(), targets, 16, mean=False)
    torch.testing.assert_close(summed, 3 * found)
