from __future__ import annotations

import pytest
import torch
from torch import nn

import unsum
from unsum.head import collect_features
from unsum.models import load_model
from unsum.models.client_batches import ClientFeatures, sharing


@pytest.mark.parametrize("spec", ["default", "torchvision:resnet18"])
@pytest.mark.parametrize("client", [4, 8])
def test_clients_at_once_see_what_they_would_see_alone(spec: str, client: int) -> None:
    model = load_model(spec, classes=3, size=32).model.train()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 2), module.bias.normal_()
    images = torch.rand(8, 3, 32, 32)
    many = ClientFeatures(model)
    alone = torch.cat(
        [collect_features(model, images[i : i + client]) for i in range(0, 8, client)]
    )
    torch.testing.assert_close(many(images, sharing(8, client, 4)), alone, atol=2e-3, rtol=2e-3)


def test_without_sharing_the_running_statistics_count() -> None:
    model = load_model("torchvision:resnet18", classes=3, size=32).model.eval()
    images = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(ClientFeatures(model)(images, None), collect_features(model, images))


def test_vectors_are_normalized_too() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2)
    ).train()
    images = torch.randn(
        6, 3, 2, 2
    )  # spread: a square's mean less a mean's square has few digits where samples are alike
    alone = torch.cat([collect_features(model, images[:3]), collect_features(model, images[3:])])
    torch.testing.assert_close(
        ClientFeatures(model)(images, sharing(6, 3, 3)), alone, atol=1e-4, rtol=1e-4
    )


def test_one_graph_serves_clients_of_every_size() -> None:
    torch._dynamo.utils.counters.clear()
    many = ClientFeatures(load_model("default", classes=3, size=32).model)
    compiled = torch.compile(many, backend="eager", fullgraph=True, dynamic=False)
    images = torch.rand(8, 3, 32, 32)
    for client in (4, 8):
        torch.testing.assert_close(
            compiled(images, sharing(8, client, 4)), many(images, sharing(8, client, 4))
        )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(unsum.UnsumError, match="multiples of the smallest client"):
        sharing(10, 8, 4)
    assert torch.equal(sharing(8, 16, 8), torch.ones(1, 1))
