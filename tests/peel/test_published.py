"""R-GAP, Phong's ratio at the first layer, Cocktail Party; and the whole attack."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.progress import Heard
from unsum import UnsumError, Update
from unsum.data import embedded_batch
from unsum.peel import peel
from unsum.peel.rgap import TURN, solve_u


def binary_update(model: nn.Module, x: Tensor, y: float) -> Update:
    loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], torch.full((len(x),), y))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return Update(
        {name: g for (name, _), g in zip(model.named_parameters(), gradients, strict=True)}
    )


def binary_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 1, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(8, 16, 3, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(16 * 16, 1, bias=False),
    )


@pytest.mark.parametrize("u", [-3.0, -0.2, 0.7, 1.2, 2.5])
def test_u_is_found_and_its_twin_with_it(u: float) -> None:
    roots = solve_u(-u / (1 + math.exp(u)))
    assert min(abs(root - u) for root in roots) < 1e-6
    assert len(roots) == (1 if u < 0 else 2)
    assert all(abs(-root / (1 + math.exp(root)) + u / (1 + math.exp(u))) < 1e-9 for root in roots)


def test_the_turn_is_where_the_twins_meet() -> None:
    slope = -(1 + math.exp(TURN) - TURN * math.exp(TURN))
    assert abs(slope) < 1e-12


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_rgap_reads_a_picture_out_of_a_binary_network(y: float) -> None:
    model, x = binary_net(), torch.rand(1, 1, 8, 8)
    update = binary_update(model, x, y)
    peeled = peel(model, update)  # auto: one logit
    assert peeled.method == "rgap"
    assert float((peeled.inputs - x).norm() / x.norm()) < 1e-3
    known = peel(model, update, method="rgap", label=int(y))
    torch.testing.assert_close(known.inputs, peeled.inputs)
    assert not bool(peeled.exact.any())  # none is published


def test_rgap_refuses_what_it_was_not_made_for() -> None:
    model, x = binary_net(), torch.rand(1, 1, 8, 8)
    with pytest.raises(UnsumError, match="must be 0 or 1"):
        peel(model, binary_update(model, x, 1.0), method="rgap", label=-1)
    several = nn.Sequential(nn.Flatten(), nn.Linear(64, 5, bias=False))
    with pytest.raises(UnsumError, match="one logit"):
        peel(several, unsum.capture(several, x, torch.tensor([2])), method="rgap")
    biased = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    with pytest.raises(UnsumError, match="without bias"):
        peel(biased, binary_update(biased, x, 1.0))


def test_phongs_ratio_is_the_input_of_one_sample_and_no_more() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(48, 30), nn.ReLU(), nn.BatchNorm1d(30).eval(), nn.Linear(30, 9)
    )
    x = torch.rand(2, 3, 4, 4)
    one = unsum.capture(model, x[:1], torch.tensor([4]), train=False)
    peeled = peel(model, one, method="phong-input")
    torch.testing.assert_close(peeled.inputs.float(), x[:1], atol=1e-5, rtol=0)
    assert bool(peeled.exact.all())
    both = peel(
        model, unsum.capture(model, x, torch.tensor([4, 5]), train=False), method="phong-input"
    )
    assert not bool(both.exact.any())
    assert "is not explained by one sample" in both.notes[0]


def test_cocktail_party_unmixes_two_photos() -> None:
    torch.manual_seed(0)
    photos = embedded_batch(2, image_size=24).images
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 64), nn.ReLU(), nn.Linear(64, 10))
    update = unsum.capture(model, photos, torch.tensor([0, 1]))
    peeled = peel(model, update, method="cocktail", batch_size=2, iterations=1500)
    assert peeled.inputs.shape == photos.shape
    rows = torch.cat([peeled.inputs.flatten(1), photos.flatten(1)])
    correlation = torch.corrcoef(rows)[:2, 2:].abs()
    assert float(correlation.max(0).values.min()) > 0.8
    assert correlation.argmax(0).unique().numel() == 2
    with pytest.raises(UnsumError, match="needs the batch size"):
        peel(model, update, method="cocktail")


def test_auto_peels_where_every_layer_can_be_undone() -> None:
    torch.manual_seed(0)
    photos = embedded_batch(3, image_size=16).images
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(768, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 20),
    )
    heard = Heard()
    labels = torch.tensor([1, 1, 2])
    leak = unsum.attack(model, unsum.capture(model, photos, labels), batch_size=3, progress=heard)
    assert heard.stages == ["Separating the batch", "Peeling layer after layer"]
    assert leak.images is not None
    assert leak.inputs_exact is not None
    assert bool(leak.inputs_exact.all())
    assert leak.notes[-1] == "Inputs were peeled layer by layer: 3 of 3 certified exact."
    assert not leak.knowledge.auxiliary_photos
    assert unsum.score(leak, images=photos)["psnr"] > 80


def test_auto_says_why_it_did_not_peel(net: nn.Sequential) -> None:
    x = torch.rand(2, 3, 16, 16)
    leak = unsum.attack(net, unsum.capture(net, x, torch.tensor([0, 1])))
    assert leak.images is None
    assert any(
        "cannot be peeled down to the input: the layer '3' (AdaptiveAvgPool2d) cannot be undone"
        in note
        for note in leak.notes
    )


def test_vectors_are_inputs_but_no_pictures() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 60), nn.Tanh(), nn.Linear(60, 20))
    x = torch.rand(2, 30)
    leak = unsum.attack(model, unsum.capture(model, x, torch.tensor([0, 1])))
    assert leak.images is None
    assert leak.inputs is not None
    assert float(torch.cdist(leak.inputs, x.double()).min(0).values.max()) < 1e-3


def test_unknown_names_are_refused() -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(48, 20)), torch.rand(2, 3, 4, 4)
    update = unsum.capture(model, x, torch.arange(2))
    with pytest.raises(UnsumError, match="did you mean 'layers'"):
        peel(model, update, method="layer")
    with pytest.raises(UnsumError, match="has no option 'steps'"):
        peel(model, update, method="cocktail", steps=3)
