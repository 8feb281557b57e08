"""Layouts of features, decoders for them, and the views an inverse is trained on."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision
from torch import Tensor, nn

import unsum
from unsum.head import find_head
from unsum.invert.augment import augment
from unsum.invert.decoder import Decoder, FglaGenerator
from unsum.invert.layout import Layout, feature_layout
from unsum.invert.losses import LOSSES, check_loss, psnr

FAMILIES = {
    "alexnet": (64, 4096),
    "convnext_tiny": (64, 768),
    "densenet121": (64, 1024),
    "efficientnet_b0": (64, 1280),
    "efficientnet_v2_s": (64, 1280),
    "googlenet": (64, 1024),
    "mnasnet0_5": (64, 1280),
    "mobilenet_v2": (64, 1280),
    "mobilenet_v3_small": (64, 1024),
    "regnet_y_400mf": (64, 440),
    "resnet18": (64, 512),
    "resnext50_32x4d": (64, 2048),
    "shufflenet_v2_x0_5": (64, 1024),
    "swin_t": (64, 768),
    "vgg11": (64, 4096),
    "vit_b_32": (224, 768),
}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gets_a_decoder_of_its_own(name: str) -> None:
    size, width = FAMILIES[name]
    options = {"init_weights": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, weights=None, num_classes=3, **options)
    assert find_head(model)[1].in_features == width
    layout = feature_layout(model, size)
    assert layout == Layout("vector", (width,))
    decoder = Decoder(layout, size)
    assert decoder(torch.rand(2, width)).shape == (2, 3, size, size)
    assert count(decoder) <= 20e6


class Unpooled(nn.Module):
    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.functional = functional
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, 4, 1), *([] if functional else [nn.ReLU(inplace=True)])
        )
        self.head = nn.Linear(6 * 8 * 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.body(x)
        if self.functional:
            maps = maps.relu()
        out: Tensor = self.head(maps.flatten(1))
        return out


class Tokens(nn.Module):
    """Patches, a token in front or not, all of them read by the head."""

    def __init__(self, class_token: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 10, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 10)) if class_token else None
        self.mix = nn.LayerNorm(10)
        self.head = nn.Linear((16 + class_token) * 10, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], 1)
        out: Tensor = self.head(self.mix(tokens).flatten(1))
        return out


@pytest.mark.parametrize("functional", [True, False])
def test_maps_are_found_behind_any_activation(functional: bool) -> None:
    model = Unpooled(functional)
    assert feature_layout(model, 32) == Layout("map", (6, 8, 8))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("class_token", [True, False])
def test_tokens_return_to_their_places(class_token: bool) -> None:
    model = Tokens(class_token)
    layout = feature_layout(model, 32)
    assert layout == Layout("tokens", (16 + class_token, 10))
    assert layout.grid == (10, 4, 4)
    tokens = torch.randn(2, 16 + class_token, 10)
    maps = layout.as_map(tokens.flatten(1))
    assert torch.equal(maps[1, :, 2, 3], tokens[1, class_token + 2 * 4 + 3])
    assert Decoder(layout, 32)(tokens.flatten(1)).shape == (2, 3, 32, 32)


@pytest.mark.parametrize(
    ("side", "size"), [(7, 224), (11, 336), (10, 299), (4, 32), (1, 224), (2, 17)]
)
def test_pictures_have_the_size_asked_for(side: int, size: int) -> None:
    layout = Layout("map", (16, side, side))
    for network in (Decoder(layout, size), FglaGenerator(layout, size)):
        images = network(torch.rand(1, 16 * side * side))
        assert images.shape == (1, 3, size, size)
        assert 0 <= float(images.min()) <= float(images.max()) <= 1


def test_sizes_of_the_published_and_of_our_network() -> None:
    with torch.device("meta"):
        published, ours = (
            network(Layout("map", (2048, 7, 7)), 224) for network in (FglaGenerator, Decoder)
        )
    assert 95e6 < count(published) < 105e6
    assert count(ours) < 20e6


def test_a_narrow_map_gets_a_small_decoder() -> None:
    narrow, wide = (Decoder(Layout("map", (channels, 5, 5)), 32) for channels in (16, 64))
    assert count(narrow) < 0.8e6 < count(wide)
    assert (narrow.patch, wide.patch) == (4, 2)
    # four pixels a place would be more than there are
    assert Decoder(Layout("map", (12, 8, 8)), 16).patch == 2


def test_features_of_any_magnitude_are_calibrated() -> None:
    torch.manual_seed(0)
    decoder, features = Decoder(Layout("map", (4, 2, 2)), 16), torch.rand(8, 16)
    decoder.calibrate(features)
    before = decoder(features)
    decoder.calibrate(features * 1e-4)
    torch.testing.assert_close(decoder(features * 1e-4), before)


def test_views_are_pictures_and_repeat_with_their_seed() -> None:
    photos = torch.randint(0, 256, (12, 3, 40, 40), dtype=torch.uint8)
    first, again, other = (
        augment(photos, 32, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert first.shape == (12, 3, 32, 32)
    assert 0 <= float(first.min()) <= float(first.max()) <= 1
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_views_still_show_their_photo() -> None:
    """Most of them: a view of a white photo is white where no other photo was put."""
    photos = torch.zeros(200, 3, 32, 32, dtype=torch.uint8)
    photos[::2] = 255
    views = augment(photos, 32, torch.Generator().manual_seed(0))
    assert float(views[::2].mean()) > 0.8
    assert float(views[1::2].mean()) < 0.2


def test_the_losses_know_a_right_picture() -> None:
    true = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(psnr(true + 0.1, true), torch.full((2,), 20.0), atol=1e-3, rtol=0)
    for name in ("psnr", "mse", "l1"):
        assert (
            LOSSES[name](true, true)
            < LOSSES[name](true + 0.05, true)
            < LOSSES[name](true + 0.1, true)
        )
    assert math.isclose(float(LOSSES["l1"](true + 0.1, true)), 0.1, rel_tol=1e-4)


def test_a_loss_without_its_network_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(unsum.UnsumError, match="needs LPIPS"):
        check_loss("rgla")
    with pytest.raises(unsum.UnsumError, match="loss"):
        check_loss("sharp")


def test_what_a_dense_layer_reads_is_the_map_that_was_flattened_for_it() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 14 * 14, 20),
        nn.ReLU(), nn.Linear(20, 4)
    )  # fmt: skip
    assert feature_layout(model, 32, "4") == Layout("map", (6, 14, 14))
    assert feature_layout(model, 32, "6") == Layout("vector", (20,))
    assert isinstance(model[4], nn.Linear)  # a copy was tapped
