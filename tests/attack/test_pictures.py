"""Pictures from inner layers: peeled where that is possible, and the features' own inverse
otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.models.resnet import BasicBlock, ResNet

import unsum
from support.residual_nets import client, network, read_by
from unsum.invert import load_inverse
from unsum.invert.layout import Layout, feature_layout
from unsum.invert.train import Training, train_inverse
from unsum.models.client_batches import ClientFeatures, sharing
from unsum.score.samples import assign

LAYER = "layer4.0.conv1"
SIZE = 64


def photos(count: int) -> Tensor:
    return torch.randint(
        0,
        255,
        (count, 3, SIZE, SIZE),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )


@pytest.fixture(scope="module")
def model() -> ResNet:
    return network(BasicBlock, [1, 1, 1, 1], SIZE)


@pytest.fixture(scope="module")
def inverses(model: ResNet, tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:
    """Hardly trained: what matters here is what they read."""
    files: dict[str | None, Path] = {}
    for layer in (LAYER, None):
        folder = tmp_path_factory.mktemp("inverse")
        training = Training(steps=2, size=SIZE, batch=8, clients=(4,), layer=layer)
        train_inverse(model, photos(16), photos(8), folder, training, card={"photos": 16})
        files[layer] = folder / "inverse.safetensors"
    return files


def test_an_inner_inverse_says_what_it_reads(
    model: ResNet, inverses: dict[str | None, Path]
) -> None:
    inner, outer = load_inverse(model, inverses[LAYER]), load_inverse(model, inverses[None])
    assert (inner.layer, outer.layer) == (LAYER, None)
    assert inner.card["layout"] == {"kind": "map", "shape": [256, 4, 4]}
    assert feature_layout(model, SIZE, LAYER) == Layout("map", (256, 4, 4))


def test_pictures_come_from_the_peeled_layer(
    model: ResNet, inverses: dict[str | None, Path]
) -> None:
    images, update = client(model, 4)
    leak = unsum.attack(model, update, inverse=[inverses[None], inverses[LAYER]])
    true = read_by(model, images, LAYER)
    partner = torch.tensor(assign(leak.inner[LAYER].flatten(1), true.flatten(1)))
    assert float((leak.inner[LAYER][partner] - true).norm() / true.norm()) < 1e-5
    decoder = load_inverse(model, inverses[LAYER]).decoder
    with torch.no_grad():
        expected = decoder(true.float().flatten(1))
    torch.testing.assert_close(leak.images[partner], expected, atol=1e-3, rtol=1e-3)
    assert any("were peeled" in note for note in leak.notes)


def test_where_peeling_fails_the_other_inverse_serves(
    model: ResNet, inverses: dict[str | None, Path]
) -> None:
    _, update = client(model, 4)
    hidden = {k: g for k, g in update.gradients.items() if not k.startswith("layer4.0.conv2")}
    partial = unsum.Update(hidden)
    both = unsum.attack(model, partial, inverse=[inverses[LAYER], inverses[None]])
    outer = unsum.attack(model, partial, inverse=inverses[None])
    torch.testing.assert_close(both.images, outer.images)
    assert any("holds no gradient of 'layer4.0.conv2.weight'" in note for note in both.notes)
    alone = unsum.attack(model, partial, inverse=inverses[LAYER])
    assert alone.images is None
    assert both.inner == alone.inner == {}


def test_an_inner_inverse_without_its_layer_is_refused(
    model: ResNet, inverses: dict[str | None, Path]
) -> None:
    _, update = client(model, 4)
    leak = unsum.separate(model, update)
    with pytest.raises(
        unsum.UnsumError,
        match=r"reads what 'layer4\.0\.conv1' reads, which this leak does not hold",
    ):
        unsum.invert(model, leak, inverse=inverses[LAYER])


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [("layer9", "has no layer 'layer9'"), ("relu", "is a ReLU"), ("fc", "is the head")],
)
def test_unknown_layers_are_refused_before_training(
    model: ResNet, layer: str, sentence: str, tmp_path: Path
) -> None:
    training = Training(steps=1, size=SIZE, batch=8, clients=(4,), layer=layer)
    with pytest.raises(unsum.UnsumError, match=sentence):
        train_inverse(model, photos(8), photos(8), tmp_path, training, card={"photos": 8})


def test_clients_at_once_read_what_they_would_read_alone(model: ResNet) -> None:
    images = torch.rand(8, 3, SIZE, SIZE)
    many = ClientFeatures(model, "layer4.0.downsample.0")(images, sharing(8, 4, 4))
    model.train()
    alone = torch.cat([read_by(model, images[i : i + 4], "layer4.0.downsample.0") for i in (0, 4)])
    assert alone.shape[1:] == (256, 2, 2)  # a stride of two passes places over
    torch.testing.assert_close(many, alone.flatten(1).float(), atol=2e-3, rtol=2e-3)


def test_convolutional_weights_serve_other_sizes(
    model: ResNet, inverses: dict[str | None, Path]
) -> None:
    inverse = load_inverse(model, inverses[None])
    larger = inverse.at(96, Layout("map", (512, 3, 3)))
    assert larger.decoder(torch.rand(2, 512 * 9)).shape == (2, 3, 96, 96)
    same = zip(inverse.decoder.parameters(), larger.decoder.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    assert inverse.at(SIZE, Layout("map", (512, 2, 2))) is inverse


def test_weights_for_other_maps_are_refused(
    model: ResNet, inverses: dict[str | None, Path]
) -> None:
    with pytest.raises(unsum.UnsumError, match="cannot be used for 96²"):
        load_inverse(model, inverses[None]).at(96, Layout("map", (256, 3, 3)))
