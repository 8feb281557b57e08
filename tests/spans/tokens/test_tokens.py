"""Pictures out of vision transformers, by value: right to a hundredth of a percent, and a mixture
is never claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import SwinTransformer, VisionTransformer

import unsum
from support.long import long
from support.vision_transformers import (
    PATCH,
    SIDE,
    briefly_trained,
    hugging_face_vit,
    photos,
    timm_vit,
    torchvision_vit,
)
from unsum import UnsumError
from unsum.attack import separate
from unsum.engine.found import FoundPoints
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.running.progress import SILENT
from unsum.spans.basis import LayerSpan
from unsum.spans.roots import Condition
from unsum.spans.tokens import find_patches
from unsum.spans.tokens.deflate import taken_out
from unsum.spans.tokens.joint import together
from unsum.spans.tokens.judge import judge
from unsum.spans.tokens.method import answered
from unsum.spans.tokens.network import PatchNetwork
from unsum.spans.tokens.replay import Player
from unsum.spans.tokens.search import _distinct, _maps, _step
from unsum.spans.tokens.solve import Solved
from unsum.spans.tokens.unwind import unwind
from unsum.update import Update

FAMILIES = {
    "torchvision": torchvision_vit,
    "torchvision, briefly trained": lambda: briefly_trained(torchvision_vit()),
    "timm": timm_vit,
    "timm, registers": lambda: timm_vit(reg_tokens=4, no_embed_class=True),
    "timm, a norm before the blocks": lambda: timm_vit(pre_norm=True),
    "timm, pooled, no class token": lambda: timm_vit(global_pool="avg", class_token=False),
    "timm, no bias at the patches": lambda: timm_vit(proj_bias=True, embed_norm_layer=None),
    "Hugging Face ViT": hugging_face_vit,
    "Hugging Face DeiT": lambda: hugging_face_vit("DeiT"),
    "Hugging Face Dinov2": lambda: hugging_face_vit("Dinov2"),
}


def _error(found: Tensor, true: Tensor) -> float:
    """The largest relative error of a picture, each beside the true one that is nearest."""
    apart = torch.cdist(found.double().flatten(1), true.double().flatten(1))
    nearest = apart.argmin(1)
    assert sorted(nearest.tolist()) == list(range(len(true)))
    return float((apart.amin(1) / true.double().flatten(1).norm(dim=1)[nearest]).max())


def _without(update: Update, *parts: str) -> Update:
    kept = {
        name: g for name, g in update.gradients.items() if not any(part in name for part in parts)
    }
    return replace(update, gradients=kept)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_picture_of_every_maker(family: str) -> None:
    model, (images, _) = FAMILIES[family](), photos(1)
    update = unsum.capture(model, images, torch.tensor([3]), train=False)
    leak = separate(model, update, "tokens", batch_size=1)
    assert leak.exact
    assert leak.labels.tolist() == [3]
    assert leak.inputs is not None
    assert _error(leak.inputs, images) < 1e-4
    assert leak.inputs_exact is not None
    assert leak.inputs_exact.tolist() == [True]
    assert _error(leak.inputs, images) < leak.predicted_error < 1e-3


def test_patches_are_found_by_what_the_model_does() -> None:
    for model, tokens in (
        (torchvision_vit(), 17),
        (timm_vit(reg_tokens=4), 21),
        (hugging_face_vit("DeiT"), 18),
    ):
        network = find_patches(model)
        assert (network.count, network.tokens, network.width) == (16, tokens, 96)
        picture = torch.rand(2, 3, SIDE, SIDE)
        rows = nn.functional.unfold(picture, PATCH, stride=PATCH).mT
        torch.testing.assert_close(network.layout.rows(picture).view_as(rows), rows)
        torch.testing.assert_close(network.layout.pictures(rows), picture)


def test_without_the_position_embedding_spans_give_the_picture() -> None:
    model, (images, labels) = briefly_trained(torchvision_vit()), photos(1)
    update = _without(unsum.capture(model, images, labels, train=False), "pos_embedding")
    leak = separate(model, update, "tokens", batch_size=1)
    assert leak.inputs is not None
    assert _error(leak.inputs, images) < 1e-2
    assert "span" in leak.notes[-1]


def test_small_patches_come_back_from_a_frozen_patch_layer() -> None:
    torch.manual_seed(0)
    # 48 numbers a patch, far fewer than channels
    model = VisionTransformer(16, 4, 3, 4, 192, 384, num_classes=10)
    model.heads.head = nn.Linear(192, 10)
    images = torch.nn.functional.interpolate(photos(1)[0], 16)
    update = _without(
        unsum.capture(model, images, torch.tensor([3]), train=False), "conv_proj", "pos_embedding"
    )
    leak = separate(model, update, "tokens", batch_size=1)
    assert leak.inputs is not None
    assert leak.exact
    assert _error(leak.inputs, images) < leak.predicted_error < 1e-3


@pytest.mark.parametrize("trained", [False, *long(True)])
def test_a_batch_of_two(trained: bool) -> None:
    model, (images, labels) = torchvision_vit(192, classes=20), photos(2)
    model = briefly_trained(model) if trained else model
    update = unsum.capture(model, images, labels, train=False)
    leak = separate(model, update, "tokens", batch_size=2)
    assert leak.exact or trained
    assert leak.inputs is not None
    assert _error(leak.inputs, images) < min(1e-3, leak.predicted_error)
    order = torch.cdist(leak.inputs.flatten(1), images.flatten(1)).argmin(1)
    assert leak.labels.tolist() == labels[order].tolist()


def test_a_mixture_of_two_pictures_is_not_certified() -> None:
    model, (images, labels) = torchvision_vit(), photos(2)
    update = unsum.capture(model, images, labels, train=False)
    head, network = Head.of(model, update), find_patches(model)
    player = Player.of(model, head.name, network, update, head.W.device)
    rows = network.layout.rows(images.double()).view(2, 16, -1)
    swapped = rows.clone()
    swapped[:, 5] = rows.flip(0)[:, 5]  # one patch of each belongs to the other
    mixed = torch.stack([0.9 * rows[0] + 0.1 * rows[1], 0.1 * rows[0] + 0.9 * rows[1]])
    for X, right in ((rows, True), (swapped, False), (mixed, False)):
        solved = Solved(X, 1e-6, (), "tokens")
        answer = answered(
            head,
            Knowledge(batch_size=2),
            player,
            network,
            update,
            solved,
            None,
            SILENT,
            polish=False,
        )
        assert judge(answer, Knowledge(batch_size=2), 0).exact == right


def test_auto_draws_the_picture() -> None:
    model, (images, _) = torchvision_vit(), photos(1)
    update = unsum.capture(model, images, torch.tensor([7]), train=False)
    leak = unsum.attack(model, update, batch_size=1)
    assert (leak.method, leak.labels.tolist(), leak.exact) == ("tokens", [7], True)
    assert leak.images is not None
    assert unsum.score(leak, images=images)["psnr"] > 80


def test_what_cannot_be_read_is_refused_in_a_sentence() -> None:
    model, (images, labels) = torchvision_vit(), photos(1)
    update = unsum.capture(model, images, labels, train=False)
    bare, other = timm_vit(pos_embed="none"), torchvision_vit()
    with pytest.raises(UnsumError, match="cannot tell which patch is where"):
        separate(bare, unsum.capture(bare, images, labels, train=False), "tokens")
    with pytest.raises(UnsumError, match="frozen layers say nothing"):
        separate(model, _without(update, "conv_proj", "pos_embedding", "in_proj"), "tokens")
    with pytest.raises(UnsumError, match="unknowns for every patch stand against"):
        separate(model, _without(update, "conv_proj", "pos_embedding"), "tokens")
    with pytest.raises(UnsumError, match="patches that overlap"):
        separate(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(3600, 10)),
            _of_a_convolution(images),
            "tokens",
        )
    nn.init.zeros_(model.heads.head.weight)
    with pytest.raises(UnsumError, match="weights are all zero"):
        separate(model, unsum.capture(model, images, labels, train=False), "tokens")
    crowd, many = photos(8)
    with pytest.raises(UnsumError, match="too many to be told apart in 96 channels"):
        separate(other, unsum.capture(other, crowd, many, train=False), "tokens")


def _of_a_convolution(images: Tensor) -> Update:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(3600, 10))
    return unsum.capture(model, images, torch.tensor([1]))


def test_windows_are_refused() -> None:
    torch.manual_seed(0)
    model = SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10).eval()
    model.image_size = SIDE
    images, labels = photos(1)
    with pytest.raises(UnsumError, match="What lies between the patches and the first attention"):
        separate(model, unsum.capture(model, images, labels, train=False), "tokens")


def _with_tokens(width: int) -> tuple[PatchNetwork, Update, Tensor]:
    """The network, the update of two photos, and all tokens that the first MLP read of them."""
    model, (images, labels) = torchvision_vit(width=width), photos(2)
    network = find_patches(model)
    assert network.block is not None
    first = model.get_submodule(network.block.first.weight.removesuffix(".weight"))
    read: list[Tensor] = []
    with (
        first.register_forward_pre_hook(lambda _, given: read.append(given[0].detach())),
        torch.no_grad(),
    ):
        model(images)
    return (
        network,
        unsum.capture(model, images, labels, train=False),
        read[0].reshape(-1, width).double(),
    )


@pytest.mark.long
def test_all_tokens_together_are_known_better_than_each_alone() -> None:
    """Both gradients of the first MLP fit only with every token in its place: errors of a
    thousandth shrink ten times."""
    network, update, Z = _with_tokens(144)
    assert network.block is not None
    noise = torch.randn(Z.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    start = Z + 1e-3 * Z.norm(dim=1, keepdim=True) * noise / noise.norm(dim=1, keepdim=True)
    found = together(network.block, update, start)
    errors = (found - Z).norm(dim=1) / Z.norm(dim=1)
    assert float(errors.median()) < 1e-4
    assert float(errors.max()) < 1e-3


def test_a_token_that_was_found_twice_counts_once() -> None:
    network, update, Z = _with_tokens(144)
    block, device = network.block, torch.device("cpu")
    assert block is not None
    here, following = (LayerSpan.of(_step(one, act, update, device)) for one, act in _maps(block))
    whole = Condition.of(_step(block.first, block.activation, update, device), here, following)
    X = torch.cat([Z, Z[4:5] * (1 + 1e-6)])
    ones = torch.ones(len(X), dtype=torch.float64)
    own = _distinct(whole, FoundPoints.of(X, 1e-7 * ones, torch.arange(len(X)).double()))
    assert own.tolist() == [True] * len(Z) + [False]


def test_a_picture_with_a_missing_patch_is_drawn_and_says_so() -> None:
    """What a token sent that was not found goes to others, a few of which then have no place
    either; the rest is drawn."""
    network, update, Z = _with_tokens(192)
    images = photos(2)[0].double()
    true = network.layout.rows(images).view(2, 16, -1)
    lost = 17 + 1 + 5  # the second picture's sixth patch, behind its class token
    unwound = unwind(network, update, Z[torch.arange(len(Z)) != lost], 2)
    assert 1 <= unwound.missing <= 8
    order = torch.cdist(unwound.X.flatten(1), true.flatten(1)).argmin(1)
    assert sorted(order.tolist()) == [0, 1]
    errors = (unwound.X - true[order]).norm(dim=2) / true[order].norm(dim=2)
    assert int((errors < 0.05).sum()) >= 24
    assert float(errors[order.tolist().index(1), 5]) > 0.05
    whole = unwind(network, update, Z, 2)
    assert whole.missing == 0
    assert float(((whole.X - true[order]).norm(dim=2) / true[order].norm(dim=2)).max()) < 1e-3


def test_tokens_that_are_found_leave_the_others_behind() -> None:
    """Half of a batch's tokens, taken out: those that are left are roots of what remains, and those
    that are gone are none."""
    network, update, Z = _with_tokens(144)
    block, device = network.block, torch.device("cpu")
    assert block is not None
    here, following = (LayerSpan.of(_step(one, act, update, device)) for one, act in _maps(block))
    whole = Condition.of(_step(block.first, block.activation, update, device), here, following)
    ones = torch.ones(17, dtype=torch.float64)
    rest = taken_out(
        whole, block.second.W, FoundPoints.of(Z[:17], 1e-7 * ones, ones), everyone=True
    )
    assert rest is not None
    assert len(rest.here) == len(rest.next) == 17
    left, gone = (rest.misfit(rest.unknowns_of(part)) for part in (Z[17:], Z[:17]))
    inside = (rest.inputs(rest.unknowns_of(Z[17:])) - Z[17:]).norm(dim=1) / Z[17:].norm(dim=1)
    assert float(inside.max()) < 1e-2
    assert float(left.median()) < 1e-4
    assert float(gone.min()) > 1e-2
