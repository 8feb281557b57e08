"""Residual blocks undone: what an inner convolution read, beside what it really read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

import unsum
from support.long import long
from support.residual_nets import CLASSES, client, network, read_by
from unsum.head import collect_features
from unsum.peel.residual.masks import confirmed
from unsum.score.samples import assign


def error(found: Tensor, true: Tensor) -> float:
    partner = assign(found.flatten(1), true.flatten(1))
    assert None not in partner
    return float((found[torch.tensor(partner)] - true).norm() / true.norm())


NETWORKS = {
    # ResNet-50's last stage, the stride in its first convolution: everything down to the stage's input
    "bottlenecks, version 1": (Bottleneck, [1, 1, 1, 3], 96, True, 5, "layer4.0.downsample.0"),
    # ResNet-18: a batch of eight through two whole stages
    "basic blocks": (BasicBlock, [2, 2, 2, 2], 64, False, 8, "layer3.0.conv1"),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("train", [False, *long(True)])
def test_whole_stages_are_undone_exactly(name: str, train: bool) -> None:
    block, layers, size, version_1, B, deepest = NETWORKS[name]
    model = network(block, layers, size, version_1=version_1)
    images, update = client(model, B, train=train)
    leak = unsum.separate(model, update, batch_size=B)
    peeled = unsum.peel(model, update, leak, "residual")
    assert peeled.layers[-1].name == deepest
    assert not peeled.complete
    assert bool(peeled.exact.all())
    true = read_by(model, images, deepest)
    found = error(peeled.inputs, true)
    assert found < 1e-5
    assert found < float(peeled.errors.max()) < 2e-4


def test_order_is_that_of_the_leak() -> None:
    model = network(BasicBlock, [1, 1, 1, 1], 64)
    images, update = client(model, 4)
    leak = unsum.separate(model, update)
    peeled = unsum.peel(model, update, leak, "residual", layer="layer4.0.conv1")
    partner = torch.tensor(assign(leak.features, collect_features(model, images)))
    true = read_by(model, images, "layer4.0.conv1")
    assert float((peeled.inputs[partner] - true).norm() / true.norm()) < 1e-5


@pytest.mark.long
def test_version_1_5_reaches_the_shortcut_up_to_scale() -> None:
    """Its first convolution reads four times as many places as it has equations for: the scale stays a guess."""
    model = network(Bottleneck, [1, 1, 1, 2], 64)
    images, update = client(model, 5)
    peeled = unsum.peel(model, update, unsum.separate(model, update), "residual")
    true = read_by(model, images, "layer4.0.downsample.0")
    assert peeled.layers[-1].name == "layer4.0.downsample.0"
    assert not bool(peeled.exact.any())
    assert any("a guess" in note for note in peeled.notes)
    scale = float(true.norm() / peeled.inputs.norm())
    assert 0.5 < scale < 2
    assert error(peeled.inputs * scale, true) < 0.05


@pytest.mark.long
def test_where_places_outnumber_channels_it_ends_and_says_which_batch_would_go_on() -> None:
    model = network(BasicBlock, [1, 1, 1, 1], 64)
    images, update = client(model, 20)
    leak = unsum.separate(model, update)
    peeled = unsum.peel(model, update, leak, "residual")
    assert (
        peeled.layers[-1].name == "layer4.0.conv1"
    )  # 80 places, 512 channels; below it are 320 places and 256 channels
    assert error(peeled.inputs, read_by(model, images, "layer4.0.conv1")) < 1e-4
    assert any("'layer3.0.conv2'" in note and "at most 16 would go on" in note for note in peeled.notes)
    with pytest.raises(unsum.UnsumError, match=r"'layer3\.0\.conv1' read cannot be peeled.*at most 16"):
        unsum.peel(model, update, leak, "residual", layer="layer3.0.conv1")


def shaken(update: unsum.Update, noise: float) -> unsum.Update:
    """Noise on every gradient but the head's, relative to each tensor's size."""
    generator = torch.Generator().manual_seed(0)

    def shake(name: str, g: Tensor) -> Tensor:
        if name.startswith("fc"):
            return g
        return g + noise * g.square().mean().sqrt() * torch.randn(g.shape, generator=generator)

    return update.map(shake)


@pytest.mark.parametrize("noise", [1e-5, 1e-3])
def test_noise_is_never_certified_beyond_its_error(noise: float) -> None:
    model = network(BasicBlock, [1, 1, 1, 1], 64)
    images, update = client(model, 4)
    leak = unsum.separate(model, update)
    peeled = unsum.peel(model, shaken(update, noise), leak, "residual")
    true = read_by(model, images, peeled.layers[-1].name)
    assert float(peeled.errors.max()) > error(peeled.inputs, true)
    assert noise < 1e-4 or not bool(peeled.exact.any())


def test_strong_noise_ends_it_at_once() -> None:
    model = network(BasicBlock, [1, 1, 1, 1], 64)
    _, update = client(model, 4)
    leak = unsum.separate(model, update)
    with pytest.raises(unsum.UnsumError, match="explained to 0"):
        unsum.peel(model, shaken(update, 0.1), leak, "residual")


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [("layer9", "is not a convolution of the blocks"), ("layer4.0.bn1", "is not a convolution of the blocks")],
)
def test_unknown_layers_are_refused(layer: str, sentence: str) -> None:
    model = network(BasicBlock, [1, 1, 1, 1], 64)
    _, update = client(model, 2)
    with pytest.raises(unsum.UnsumError, match=sentence):
        unsum.peel(model, update, unsum.separate(model, update), "residual", layer=layer)


def test_pooling_and_plain_networks_are_refused() -> None:
    pooled = network(BasicBlock, [1, 1, 1, 1], 64)
    pooled.avgpool, pooled.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, CLASSES)
    _, update = client(pooled, 3)
    with pytest.raises(unsum.UnsumError, match="global pooling"):
        unsum.peel(pooled, update, unsum.separate(pooled, update), "residual")
    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 10))
    update = unsum.capture(plain, torch.rand(3, 3, 2, 2), torch.arange(3))
    with pytest.raises(unsum.UnsumError, match="no residual blocks"):
        unsum.peel(plain, update, unsum.separate(plain, update), "residual", shape=(3, 2, 2))


def test_an_update_without_the_backbone_is_refused() -> None:
    model = network(BasicBlock, [1, 1, 1, 1], 64)
    _, update = client(model, 2)
    leak = unsum.separate(model, update)
    only_head = replace(update, gradients={k: g for k, g in update.gradients.items() if k.startswith("fc")})
    with pytest.raises(unsum.UnsumError, match=r"holds no gradient of 'layer4\.0\.conv1\.weight'"):
        unsum.peel(model, only_head, leak, "residual")


class TestMasks:
    """Two channels of 40 entries; a BatchNorm's bias gradient is the sum of gradients where the entry is positive."""

    def case(self) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        maps = torch.randn(10, 2, 2, 2, dtype=torch.float64, generator=generator).relu()
        return maps, torch.randn(maps.shape, dtype=torch.float64, generator=generator), maps > 0

    @pytest.mark.parametrize("count", [1, 2, 7])
    def test_a_level_below_the_noise_is_found_out(self, count: int) -> None:
        maps, gradient, positive = self.case()
        beta = (gradient * positive).sum((0, 2, 3))
        for place, value in zip((~positive[:, 0]).nonzero()[:count], torch.linspace(2e-3, 1.5e-3, count), strict=True):
            maps[place[0], 0, place[1], place[2]] = value
        mask = confirmed(maps, gradient, beta, 1e-3)
        assert torch.equal(mask.positive, positive)
        assert mask.doubtful == 0

    @pytest.mark.parametrize("count", [1, 2])
    def test_entries_that_no_level_tells_apart_are_turned(self, count: int) -> None:
        """Zeros that noise lifted above a true entry of the same channel."""
        maps, gradient, positive = self.case()
        beta = (gradient * positive).sum((0, 2, 3))
        for place, value in zip((~positive[:, 0]).nonzero()[:count], (2.5e-3, 2.2e-3), strict=False):
            maps[place[0], 0, place[1], place[2]] = value
        small = positive[:, 0].nonzero()[0]
        maps[small[0], 0, small[1], small[2]] = 1.2e-3
        mask = confirmed(maps, gradient, beta, 1e-3)
        assert torch.equal(mask.positive, positive)
        assert (mask.repaired, mask.doubtful) == (1, 0)

    def test_what_nothing_explains_is_doubtful(self) -> None:
        maps, gradient, positive = self.case()
        beta = (gradient * positive).sum((0, 2, 3)) + torch.tensor([0.0, 0.123456])
        mask = confirmed(maps, gradient, beta, 1e-9)
        assert mask.doubtful == 1

    def test_channels_without_a_zero_are_counted(self) -> None:
        maps, gradient, _ = self.case()
        maps[:, 1] += 1
        beta = (gradient * (maps > 0)).sum((0, 2, 3))
        assert confirmed(maps, gradient, beta, 1e-9).without_zero == 1
