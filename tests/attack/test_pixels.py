from __future__ import annotations

from dataclasses import replace

import torch
from torchvision.models.resnet import BasicBlock

import unsum
from support.residual_nets import Narrow, known_at
from unsum.attack.chain import _with_maps_of
from unsum.attack.pictures import with_guess, with_pixels
from unsum.data import embedded_batch
from unsum.leak import Leak

LABELS = torch.tensor([3, 7])


def test_a_leak_with_a_map_that_tells_the_pictures_gets_them() -> None:
    model = Narrow(BasicBlock, [24, 24, 8]).eval()
    images = embedded_batch(2, image_size=16).images * 4 - 2
    update = unsum.capture(model, images, LABELS, train=False)
    leak = with_pixels(model, update, known_at(model, images, LABELS, "layers.1.0.conv1"), 0)
    assert leak.images is not None
    assert leak.inputs is not None
    assert leak.inputs_exact is not None
    assert float((leak.images - images).abs().max()) < 1e-3
    assert torch.equal(leak.inputs.float(), leak.images)
    assert leak.inputs_exact.all()
    assert "Pixels were solved for" in leak.notes[0]


def test_a_leak_whose_maps_say_too_little_keeps_what_it_has_and_says_why() -> None:
    model = Narrow(BasicBlock, [24, 24, 8]).eval()
    images = embedded_batch(2, image_size=16).images
    update = unsum.capture(model, images, LABELS, train=False)
    found = known_at(model, images, LABELS, "layers.2.1.conv1")
    leak = with_pixels(model, update, found, 0)
    assert leak.images is None
    assert "not determined" in leak.notes[-1]
    assert with_pixels(model, update, replace(found, inner={}), 0).notes == []


def test_where_nothing_better_is_left_a_map_gives_blurred_pictures_and_says_so() -> None:
    model = Narrow(BasicBlock, [24, 24, 16]).eval()
    images = embedded_batch(2, image_size=16).images * 4 - 2
    leak = with_guess(model, known_at(model, images, LABELS, "layers.1.0.conv1"), 0)
    assert leak.images is not None
    truth, guess = (one - one.mean((2, 3), keepdim=True) for one in (images, leak.images))
    likeness = torch.nn.functional.cosine_similarity
    assert (likeness(guess.flatten(1), truth.flatten(1)) > 0.8).all()
    assert (likeness(guess.flip(0).flatten(1), truth.flatten(1)) < 0.2).all()
    assert "are a guess" in leak.notes[-1]
    assert leak.inputs is None
    assert with_guess(model, replace(leak, images=images), 0).images is images
    # a poor guess
    assert with_guess(model, known_at(model, images, LABELS, "layers.2.0.conv2"), 0).images is None


def test_maps_that_fit_the_features_of_the_head_are_taken_in_its_order_and_without_a_claim() -> (
    None
):
    torch.manual_seed(0)
    features, targets, maps = torch.randn(3, 8), torch.eye(3), torch.randn(3, 2, 4, 4)
    head = Leak("exact", targets, targets, features, 0.0, 1e-7, True)
    turned = [2, 0, 1]
    spans = Leak(
        "spans",
        targets,
        targets,
        features[turned] * (1 + 1e-5),
        0.0,
        1e-2,
        False,
        inner={"conv": maps[turned]},
    )
    found = _with_maps_of(spans, head)
    assert torch.equal(found.inner["conv"], maps)
    assert found.method == "exact"
    assert "The maps are not certified." in found.notes
    assert _with_maps_of(replace(spans, features=features[turned] * 1.01), head).inner == {}
    assert _with_maps_of(replace(spans, features=features[[2, 2, 1]]), head).inner == {}
