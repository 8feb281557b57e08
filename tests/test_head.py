from __future__ import annotations

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support.material import pictures, small_net
from unsum import UnsumError, Update, capture
from unsum.head import Head, collect_features, find_head


class LayersInOddOrder(nn.Module):
    """The head is defined before the layer that feeds it: registration order misleads, data flow
    does not."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = nn.Linear(6, 4)
        self.embed = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(torch.relu(self.embed(x)))


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 0:  # control flow on values stops torch.fx
            x = -x
        return self.head(self.body(x))


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.head(x), dim=1)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("resnet18", "fc"),
        ("mobilenet_v2", "classifier.1"),
        ("densenet121", "classifier"),
        ("efficientnet_b0", "classifier.1"),
        ("convnext_tiny", "classifier.2"),
        ("vit_b_32", "heads.head"),
        ("swin_t", "head"),
        ("googlenet", "fc"),
        ("vgg11", "classifier.6"),
        ("shufflenet_v2_x0_5", "fc"),
        ("mnasnet0_5", "classifier.1"),
        ("alexnet", "classifier.6"),
    ],
)
def test_finds_the_head_of_torchvision_classifiers(name: str, head: str) -> None:
    options = {"init_weights": False} if name == "googlenet" else {}
    with torch.device("meta"):  # shapes suffice; nothing is allocated
        model = torchvision.models.get_model(name, weights=None, num_classes=17, **options)
    found, linear = find_head(model)
    assert (found, linear.out_features) == (head, 17)


@pytest.mark.parametrize(
    ("model", "head"),
    [(LayersInOddOrder(), "classify"), (Untraceable(), "head"), (Normalized(), "head")],
)
def test_finds_the_head_of_a_users_own_module(model: nn.Module, head: str) -> None:
    assert find_head(model)[0] == head


def test_a_bare_linear_layer_is_its_own_head() -> None:
    layer = nn.Linear(3, 2)
    assert find_head(layer) == ("", layer)
    update = Update({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    assert torch.equal(Head.of(layer, update).grad_W, torch.ones(2, 3))


def test_finding_the_head_leaves_the_modes_alone(net: nn.Sequential) -> None:
    net.train()
    net[1].eval()
    find_head(net)
    assert net.training
    assert not net[1].training


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            torchvision.models.squeezenet1_1(num_classes=3),
            "comes from 'classifier.3', a AdaptiveAvgPool2d",
        ),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU()), "comes from '1', a ReLU"),
        (nn.Sequential(nn.Flatten()), "does not come straight from a layer"),
    ],
)
def test_says_when_there_is_no_linear_head(model: nn.Module, reason: str) -> None:
    with pytest.raises(UnsumError, match=f"has no linear head: .*{reason}"):
        find_head(model)


def test_head_carries_weights_and_gradients(net: nn.Sequential) -> None:
    update = capture(net, pictures(3), torch.tensor([1, 2, 3]))
    head = Head.of(net, update)
    assert torch.equal(head.W, net[5].weight)
    assert torch.equal(head.grad_W, update.gradients["5.weight"])
    assert torch.equal(head.grad_b, update.gradients["5.bias"])
    assert head.classes == 40
    without = Head.of(
        small_net(bias=False), capture(small_net(bias=False), pictures(3), torch.tensor([1, 2, 3]))
    )
    assert without.b is None
    assert without.grad_b is None


def test_an_update_without_the_head_is_refused(net: nn.Sequential) -> None:
    update = capture(net, pictures(3), torch.tensor([1, 2, 3]))
    with pytest.raises(UnsumError, match=r"lacks '5\.weight'"):
        Head.of(net, Update({"0.bias": update.gradients["0.bias"]}))


def test_collected_features_give_the_logits(net: nn.Sequential) -> None:
    images = pictures(5)
    features = collect_features(net.eval(), images)
    torch.testing.assert_close(net[5](features), net(images))


@settings(max_examples=25)
@given(
    rows=st.integers(2, 30),
    columns=st.integers(2, 50),
    rank=st.integers(1, 8),
    seed=st.integers(0, 9),
)
def test_factors_multiply_back_to_the_gradient(
    rows: int, columns: int, rank: int, seed: int
) -> None:
    torch.manual_seed(seed)
    rank = min(rank, rows, columns)
    gradient = torch.randn(rows, rank, dtype=torch.float64) @ torch.randn(
        rank, columns, dtype=torch.float64
    )
    factors = Head("head", gradient, None, gradient, None).factorize(rank=rank)
    torch.testing.assert_close(factors.U @ factors.A, gradient, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        factors.A @ factors.A.T, torch.eye(rank, dtype=torch.float64), rtol=0, atol=1e-5
    )
    expected = torch.linalg.svdvals(gradient)[:rank]
    torch.testing.assert_close(factors.singular_values[:rank], expected, rtol=1e-5, atol=1e-6)


def test_row_norms_leave_a_float64_gradient_as_it_was() -> None:
    gradient = torch.tensor([[3.0, 4.0], [0.0, -2.0]], dtype=torch.float64)
    head = Head("head", gradient, None, gradient.clone(), None)
    assert head.row_norms(head.grad_W).tolist() == [5.0, 2.0]
    assert torch.equal(head.grad_W, gradient)
