"""Matching for networks that are no classifiers: the gradient of the client's own loss, of pictures
and of targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.client.any_network import capture_any, usual_loss
from unsum.data.batch import embedded_batch
from unsum.losses import declared
from unsum.match.any_network import match_any
from unsum.match.protocol import Protocol
from unsum.network.loss_function import LossFunction, function_of
from unsum.score.reference import public_picture


def squares() -> LossFunction:
    loss = declared("mse")
    assert loss is not None
    found = function_of(loss)
    assert found is not None
    return found


def network(outputs: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, outputs, 3, padding=1)
    )


def photo(number: int, side: int = 8) -> Tensor:
    return embedded_batch(8, image_size=side).images[[number]]


def masks(x: Tensor) -> Tensor:
    """Four classes by brightness."""
    return (x.mean(1) * 4).long().clamp(0, 3)


def share(found: Tensor, x: Tensor) -> float:
    """Of one photo, as audits count it: beyond the mean color of photos."""
    guess = public_picture(x)
    assert guess is not None
    return 1 - float((found - x).square().sum() / (guess - x.flatten(1)).square().sum())


def protocol(
    form: Any, target: tuple[int, ...], loss: LossFunction = usual_loss, side: int = 8
) -> Protocol:
    return Protocol(loss, (3, side, side), target, form)


def test_the_gradient_of_the_loss_is_a_function_of_pictures_and_targets() -> None:
    """L = mean (w x + b − t)² of two pixels: ∂L/∂b = Σ (w x + b − t), which falls by 1 with each t
    and grows by w with each x."""
    model = nn.Conv2d(1, 1, 1)
    with torch.no_grad():
        model.weight.fill_(3.0)
        model.bias.fill_(0.5)  # type: ignore[union-attr]
    x = torch.tensor([[[[1.0, 2.0]]]], requires_grad=True)
    t = torch.tensor([[[[1.0, 4.0]]]], requires_grad=True)
    told = Protocol(squares(), (1, 1, 2), (1, 1, 2), "numbers")
    weight, bias = told.gradients(model, x, t, list(model.parameters()))
    assert bias.item() == pytest.approx((3.5 - 1) + (6.5 - 4))
    assert weight.item() == pytest.approx((3.5 - 1) * 1 + (6.5 - 4) * 2)
    by_x, by_t = torch.autograd.grad(bias.sum(), [x, t])
    assert by_x.flatten().tolist() == pytest.approx([3.0, 3.0])
    assert by_t.flatten().tolist() == pytest.approx([-1.0, -1.0])


def test_numbers_begin_with_every_combination_of_signs() -> None:
    told = protocol("numbers", (2,))
    starts = [told.start((2, 2), restart, torch.Generator().manual_seed(0)) for restart in range(4)]
    signs = [one.sign()[:, 0].tolist() for one in starts]
    assert signs == [[1, 1], [-1, 1], [1, -1], [-1, -1]]
    assert torch.equal(starts[0].sign()[:, 0], starts[0].sign()[:, 1])


def test_unknown_targets_have_the_form_that_the_loss_takes() -> None:
    told = protocol("classes", (8, 8))
    assert told.unknown(network(), 3) == (3, 4, 8, 8)
    assert told.targets(torch.zeros(1, 4, 8, 8)).unique().tolist() == [0.25]
    assert protocol("shares", (5,)).targets(torch.zeros(1, 5)).unique().tolist() == [0.5]
    assert protocol("numbers", (5,)).unknown(network(), 3) == (3, 5)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (
            lambda out, t: -out.log_softmax(1).gather(1, t[:, None]).mean(),
            "takes class numbers alone",
        ),
        (lambda out, t: (out - t.to(out).mean()).square().mean(), "cannot be varied by degrees"),
    ],
)
def test_a_loss_of_class_numbers_alone_leaves_targets_to_be_granted(
    loss: LossFunction, why: str
) -> None:
    x = photo(1)
    told = protocol("classes", (8, 8), loss)
    update = capture_any(network(), x, masks(x), loss, train=True)
    with pytest.raises(unsum.UnsumError, match=why):
        match_any(network(), update, told, batch_size=1, steps=1)
    assert (
        match_any(network(), update, told, batch_size=1, targets=masks(x), steps=1).images
        is not None
    )


@pytest.mark.parametrize("number", [1, 2])
def test_a_photo_is_drawn_from_a_segmentation_networks_gradient(number: int) -> None:
    x = photo(number)
    update = capture_any(network(), x, masks(x), None, train=True)
    told = protocol("classes", (8, 8))
    found = match_any(network(), update, told, batch_size=1, targets=masks(x), steps=100)
    assert found.images is not None
    assert share(found.images, x) > 0.85
    assert found.residual < 0.1
    wrong = match_any(network(), update, told, batch_size=1, targets=3 - masks(x), steps=100)
    assert wrong.images is not None
    assert share(wrong.images, x) < 0.5
    assert (found.exact, found.pictures_first) == (False, True)
    assert found.knowledge.granted()[1:] == [
        "The client's targets (masks, numbers to predict), and nothing of its inputs.",
        "The batch size (1).",
    ]


def test_numbers_to_predict_are_estimated_along_with_the_photo() -> None:
    """The target is far below what the network predicts, so that half of the starts have the wrong
    sign."""
    x, y = photo(1), torch.full((1, 1, 1, 1), -2.0)
    model = nn.Sequential(*network(16)[:2], nn.AdaptiveAvgPool2d(4), nn.Conv2d(16, 1, 4))
    update = capture_any(model, x, y, squares(), train=True)
    found = match_any(
        model, update, protocol("numbers", (1, 1, 1), squares()), batch_size=1, steps=150
    )
    assert found.images is not None
    assert share(found.images, x) > 0.7
    assert found.knowledge.granted() == ["The model's weights and one client update."]


def test_outputs_are_never_broadcast_against_targets() -> None:
    """(4, 1) outputs and (4,) numbers would make 16 differences."""
    out, t = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.zeros(4)
    assert float(squares()(out, t)) == pytest.approx((1 + 4 + 9 + 16) / 4)
    with pytest.raises(unsum.UnsumError, match=r"\(4, 1\), which does not fit targets of \(2,\)"):
        squares()(out, t[:2])


def test_the_model_stays_as_it_was() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)
    )
    x = photo(1)
    update = capture_any(model, x, masks(x), None, train=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    match_any(model, update, protocol("classes", (8, 8)), batch_size=1, steps=3)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
