"""Residual blocks undone: what an inner convolution read, beside what it really read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

import unsum
from support.residual_nets import Narrow, client, network, read_by
from unsum.head import collect_features
from unsum.peel.residual import reach
from unsum.peel.residual.masks import confirmed
from unsum.score.samples import assign


def error(found: Tensor, true: Tensor) -> float:
    partner = assign(found.flatten(1), true.flatten(1))
    assert None not in partner
    return float((found[torch.tensor(partner)] - true).norm() / true.norm())


def unpooled(block: type, *, version_1: bool = False) -> Narrow:
    return Narrow(block, [16, 32, 64], pooled=False, version_1=version_1)


NETWORKS = {
    # the stride in the first convolution, as in the first ResNet-50: everything down to the stage's
    # input
    "bottlenecks, version 1": (Bottleneck, True, 3, "layers.2.0.conv1"),
    # 3×3 convolutions have nine times as many equations as channels
    "basic blocks": (BasicBlock, False, 4, "layers.1.1.conv2"),
}


@pytest.mark.parametrize(
    ("name", "train"),
    [("bottlenecks, version 1", True), ("basic blocks", True), ("basic blocks", False)],
)
def test_whole_stages_are_undone_exactly(name: str, train: bool) -> None:
    block, version_1, B, deepest = NETWORKS[name]
    model = unpooled(block, version_1=version_1)
    images, update = client(model, B, train=train)
    leak = unsum.separate(model, update, batch_size=B)
    peeled = unsum.peel(model, update, leak, "residual")
    assert not peeled.complete
    assert bool(peeled.exact.all())
    predicted = {layer.name: layer.predicted_error for layer in peeled.layers}
    for layer in (deepest, peeled.layers[-1].name):
        assert error(peeled.inner[layer], read_by(model, images, layer)) < predicted[layer] < 2e-4
    assert torch.equal(peeled.inputs, peeled.inner[peeled.layers[-1].name])


@pytest.mark.long
def test_stages_of_full_width_are_undone_exactly() -> None:
    """ResNet-18: a batch of eight through two whole stages."""
    model = network(BasicBlock, [2, 2, 2, 2], 64)
    images, update = client(model, 8)
    peeled = unsum.peel(model, update, unsum.separate(model, update, batch_size=8), "residual")
    assert bool(peeled.exact.all())
    assert error(peeled.inner["layer3.0.conv1"], read_by(model, images, "layer3.0.conv1")) < 1e-5


@pytest.mark.parametrize("layer", ["layers.2.1.conv2", "layers.2.1.conv1"])
def test_a_layer_inside_the_first_block_can_be_asked_for(layer: str) -> None:
    """The walk ends before it has read any block's input."""
    model = unpooled(BasicBlock)
    images, update = client(model, 4)
    peeled = unsum.peel(model, update, unsum.separate(model, update), "residual", layer=layer)
    assert peeled.layers[-1].name == layer
    assert error(peeled.inputs, read_by(model, images, layer)) < 1e-5


def test_order_is_that_of_the_leak() -> None:
    model = unpooled(BasicBlock)
    images, update = client(model, 4)
    leak = unsum.separate(model, update)
    peeled = unsum.peel(model, update, leak, "residual", layer="layers.2.0.conv1")
    partner = torch.tensor(assign(leak.features, collect_features(model, images)))
    true = read_by(model, images, "layers.2.0.conv1")
    assert float((peeled.inputs[partner] - true).norm() / true.norm()) < 1e-5


@pytest.mark.long
def test_version_1_5_reaches_the_shortcut_up_to_scale() -> None:
    """Its first convolution reads more places than it has equations for: the scale stays a
    guess."""
    model = unpooled(Bottleneck)
    images, update = client(model, 3)
    peeled = unsum.peel(
        model, update, unsum.separate(model, update), "residual", layer="layers.2.0.downsample.0"
    )
    true = read_by(model, images, "layers.2.0.downsample.0")
    assert not bool(peeled.exact.any())
    assert any("a guess" in note for note in peeled.notes)
    scale = float(true.norm() / peeled.inputs.norm())
    assert 0.5 < scale < 2
    assert error(peeled.inputs * scale, true) < 0.05


@pytest.mark.long
def test_where_places_outnumber_equations_it_ends_and_says_which_batch_would_go_on() -> None:
    model = unpooled(BasicBlock)
    images, update = client(model, 6)
    leak = unsum.separate(model, update)
    peeled = unsum.peel(model, update, leak, "residual")
    # 96 places in each class, 128 equations; below it are 384 places and 9 × 32 equations
    assert peeled.layers[-1].name == "layers.2.0.conv1"
    assert error(peeled.inputs, read_by(model, images, "layers.2.0.conv1")) < 1e-4
    assert any(
        "'layers.1.1.conv2'" in note and "at most 4 would go on" in note for note in peeled.notes
    )
    with pytest.raises(
        unsum.UnsumError, match=r"'layers\.1\.1\.conv1' read cannot be peeled.*at most 4"
    ):
        unsum.peel(model, update, leak, "residual", layer="layers.1.1.conv1")


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
    model = unpooled(BasicBlock)
    images, update = client(model, 4)
    leak = unsum.separate(model, update)
    peeled = unsum.peel(model, shaken(update, noise), leak, "residual")
    true = read_by(model, images, peeled.layers[-1].name)
    assert float(peeled.errors.max()) > error(peeled.inputs, true)
    assert noise < 1e-4 or not bool(peeled.exact.any())


def test_strong_noise_ends_it_at_once() -> None:
    model = unpooled(BasicBlock)
    _, update = client(model, 4)
    leak = unsum.separate(model, update)
    with pytest.raises(unsum.UnsumError, match="explained to 0"):
        unsum.peel(model, shaken(update, 0.1), leak, "residual")


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ("layer9", "is not a convolution of the blocks"),
        ("layers.2.0.bn1", "is not a convolution of the blocks"),
    ],
)
def test_unknown_layers_are_refused(layer: str, sentence: str) -> None:
    model = unpooled(BasicBlock)
    _, update = client(model, 2)
    with pytest.raises(unsum.UnsumError, match=sentence):
        unsum.peel(model, update, unsum.separate(model, update), "residual", layer=layer)


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((3, 7, 9), "takes no input of shape"),
        ((3, 16), r"give shape=\(3, height, width\)"),
        ((), "shape= is that of one input"),
        (16, "shape= is that of one input"),
        ((3, 16.0, 16.0), "shape= is that of one input"),
    ],
)
def test_shapes_that_the_model_does_not_take_are_refused(shape: object, sentence: str) -> None:
    model = unpooled(BasicBlock)
    _, update = client(model, 2)
    leak = unsum.separate(model, update)
    with pytest.raises(unsum.UnsumError, match=sentence):
        unsum.peel(model, update, leak, "residual", shape=shape)  # type: ignore[arg-type]
    if shape == (3, 7, 9):
        with pytest.raises(unsum.UnsumError, match=sentence):
            reach(model, 2, 7)


def test_leaks_that_do_not_fit_the_model_are_refused() -> None:
    model = unpooled(BasicBlock)
    _, update = client(model, 2)
    leak = unsum.separate(model, update)
    fewer = replace(leak, features=leak.features[:, :100])
    empty = replace(leak, targets=leak.targets[:0])
    for other in (fewer, empty):
        for method in ("residual", "layers"):
            with pytest.raises(
                unsum.UnsumError, match="does not fit the model, whose head reads 1024"
            ):
                unsum.peel(model, update, other, method)
    maps = replace(leak, inner={"layers.2.0.conv1": torch.rand(2, 3, 3, 3)})
    with pytest.raises(unsum.UnsumError, match=r"maps of shape \(2, 3, 3, 3\) for 'layers\.2\.0'"):
        unsum.peel(model, update, maps, "residual")


def test_a_block_with_a_convolution_too_many_is_refused() -> None:
    model = unpooled(BasicBlock)
    _, update = client(model, 2)
    leak = unsum.separate(model, update)
    model.layers[2][1].conv3 = nn.Conv2d(64, 64, 1, bias=False)  # without a bn3
    with pytest.raises(unsum.UnsumError, match=r"'layers\.2\.1\.bn3' are not a plain convolution"):
        unsum.peel(model, update, leak, "residual")


def test_pooling_and_plain_networks_are_refused() -> None:
    pooled = Narrow(BasicBlock, [16, 32, 64])
    _, update = client(pooled, 3)
    with pytest.raises(unsum.UnsumError, match="global pooling"):
        unsum.peel(pooled, update, unsum.separate(pooled, update), "residual")
    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 10))
    update = unsum.capture(plain, torch.rand(3, 3, 2, 2), torch.arange(3))
    with pytest.raises(unsum.UnsumError, match="no residual blocks"):
        unsum.peel(plain, update, unsum.separate(plain, update), "residual", shape=(3, 2, 2))


def test_an_update_without_the_backbone_is_refused() -> None:
    model = unpooled(BasicBlock)
    _, update = client(model, 2)
    leak = unsum.separate(model, update)
    only_head = replace(
        update, gradients={k: g for k, g in update.gradients.items() if k.startswith("fc")}
    )
    with pytest.raises(
        unsum.UnsumError, match=r"holds no gradient of 'layers\.2\.1\.conv1\.weight'"
    ):
        unsum.peel(model, only_head, leak, "residual")


def level(value: float) -> Tensor:
    return torch.full((10, 1, 1, 1), value, dtype=torch.float64)


class TestMasks:
    """Two channels of 40 entries; a BatchNorm's bias gradient is the sum of gradients where the
    entry is positive."""

    def case(self) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        maps = torch.randn(10, 2, 2, 2, dtype=torch.float64, generator=generator).relu()
        return maps, torch.randn(maps.shape, dtype=torch.float64, generator=generator), maps > 0

    @pytest.mark.parametrize("count", [1, 2, 7])
    def test_a_level_below_the_noise_is_found_out(self, count: int) -> None:
        maps, gradient, positive = self.case()
        beta = (gradient * positive).sum((0, 2, 3))
        for place, value in zip(
            (~positive[:, 0]).nonzero()[:count], torch.linspace(2e-3, 1.5e-3, count), strict=True
        ):
            maps[place[0], 0, place[1], place[2]] = value
        mask = confirmed(maps, gradient, beta, level(1e-3))
        assert torch.equal(mask.positive, positive)
        assert mask.doubtful == 0

    @pytest.mark.parametrize("count", [1, 2])
    def test_entries_that_no_level_tells_apart_are_turned(self, count: int) -> None:
        """Zeros that noise lifted above a true entry of the same channel."""
        maps, gradient, positive = self.case()
        beta = (gradient * positive).sum((0, 2, 3))
        for place, value in zip(
            (~positive[:, 0]).nonzero()[:count], (2.5e-3, 2.2e-3), strict=False
        ):
            maps[place[0], 0, place[1], place[2]] = value
        small = positive[:, 0].nonzero()[0]
        maps[small[0], 0, small[1], small[2]] = 1.2e-3
        mask = confirmed(maps, gradient, beta, level(1e-3))
        assert torch.equal(mask.positive, positive)
        assert (mask.repaired, mask.doubtful) == (1, 0)

    def test_what_nothing_explains_is_doubtful(self) -> None:
        maps, gradient, positive = self.case()
        beta = (gradient * positive).sum((0, 2, 3)) + torch.tensor([0.0, 0.123456])
        mask = confirmed(maps, gradient, beta, level(1e-9))
        assert mask.doubtful == 1

    def test_channels_without_a_zero_are_counted(self) -> None:
        maps, gradient, _ = self.case()
        maps[:, 1] += 1
        beta = (gradient * (maps > 0)).sum((0, 2, 3))
        hidden = confirmed(maps, gradient, beta, level(1e-9)).without_zero(
            [(slice(None), slice(None))]
        )
        assert hidden.flatten(2).all(2).tolist() == [[False, True]]
