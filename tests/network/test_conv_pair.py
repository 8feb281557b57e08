"""Two consecutive convolutions in a data flow, and the logits as a function of what they read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unsum
from unsum.network.conv_pair import find_pairs, tail_above


def network(**options: object) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(),
        nn.Conv2d(4, 5, 3, padding=1, bias=False, **options), nn.BatchNorm2d(5), nn.Tanh(),
        nn.Conv2d(5, 6, 1), nn.Flatten(), nn.Linear(96, 7),
    )  # fmt: skip


def client(model: nn.Module) -> unsum.Update:
    return unsum.capture(model, torch.rand(2, 3, 4, 4), torch.arange(2), train=False)


def test_pairs_are_found_with_their_norms_the_nearest_to_the_logits_first() -> None:
    model = network().eval()
    upper, lower = find_pairs(model, client(model))
    assert (upper.first.name, upper.second.name) == ("2", "5")
    assert (lower.first.name, lower.second.name) == ("0", "2")
    assert upper.first.batch_norm is model[3]
    assert upper.first.norm_name == "3"
    assert (upper.activation.name, lower.activation.name) == ("Tanh", "ReLU")
    assert upper.second.placewise


def test_the_shift_of_a_norm_in_eval_mode_is_its_bias_gradient_behind_its_scale() -> None:
    model = network().eval()
    update = client(model)
    norm = model[3]
    with torch.no_grad():
        norm.weight.fill_(2.0)
        norm.running_var.fill_(4.0 - norm.eps)
    upper, _ = find_pairs(model, update)
    assert upper.first.grad_shift is not None
    torch.testing.assert_close(upper.first.grad_shift.float(), update.gradients["3.bias"])


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding_mode": "circular"}])
def test_convolutions_of_another_kind_are_no_pair(options: dict[str, object]) -> None:
    model = network(**options).eval()
    model[7] = nn.Linear(24 if "stride" in options else 96, 7)
    assert find_pairs(model, client(model)) == []


def test_the_tail_gives_the_model_s_logits() -> None:
    model = network().eval()
    _, lower = find_pairs(model, client(model))
    tail = tail_above(model, lower.above)
    assert tail is not None
    images = torch.rand(3, 3, 4, 4)
    maps = model[:3](images).double()
    torch.testing.assert_close(tail(maps).float(), model(images), rtol=1e-5, atol=1e-6)
