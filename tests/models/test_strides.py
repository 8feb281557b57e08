"""Weights of one ResNet version must not be loaded into the other: same names and shapes, other
features."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck, ResNet

from unsum.data import embedded_batch
from unsum.errors import UnsumError
from unsum.models.strides import refuse_other_version
from unsum.models.weights_file import load_weights


def _network(version: str) -> ResNet:
    torch.manual_seed(0)
    network = ResNet(Bottleneck, [1, 1, 1, 1], num_classes=3, width_per_group=8)
    if version == "1":
        for stage in (network.layer2, network.layer3, network.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return network


def _photos() -> Tensor:
    """Mirrored, so that the statistics learned from them are near to those of the check and not the
    same."""
    images = embedded_batch(8, image_size=128).images.flip(3)
    return (images - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)


def _trained(version: str, images: Tensor) -> ResNet:
    """With running statistics of these pictures; the weights between them are random, as good as
    any."""
    network = _network(version)
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = None  # the plain mean over all passes: of one, its own
    with torch.no_grad():
        network.train()(images)
    return network


@pytest.fixture(scope="module", params=["1", "1.5"])
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("weights") / f"resnet-{request.param}.safetensors"
    save_file(_trained(request.param, _photos()).state_dict(), path)
    return request.param, path


def test_weights_are_loaded_into_their_own_version_alone(saved: tuple[str, Path]) -> None:
    version, path = saved
    own = _network(version)
    assert load_weights(own, path)
    other = _network("1.5" if version == "1" else "1")
    strides = other.layer2[0].conv1.stride, other.layer2[0].conv2.stride
    with pytest.raises(
        UnsumError,
        match=rf"are those of a ResNet of version {version}, and this model is of version",
    ) as told:
        load_weights(other, path)
    assert path.name in str(told.value)
    assert (other.layer2[0].conv1.stride, other.layer2[0].conv2.stride) == strides
    assert other.training
    assert not other.layer2[0]._forward_pre_hooks


def test_nothing_is_said_of_networks_whose_statistics_tell_nothing() -> None:
    refuse_other_version(_network("1"), "untrained.pt")
    torch.manual_seed(1)
    refuse_other_version(_trained("1", torch.randn(8, 3, 64, 64)), "other-pictures.pt")
    gray = _network("1")
    gray.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    gray.layer2[0].bn2.running_var.fill_(2.0)
    refuse_other_version(gray, "gray.pt")
