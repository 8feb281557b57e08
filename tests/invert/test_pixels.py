from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

import unsum
from support.residual_nets import Narrow, known_at
from unsum.data import embedded_batch
from unsum.errors import UnsumError
from unsum.invert.pixels import SolvedPixels, find_reach, solve_pixels
from unsum.invert.pixels.contrast import Contrast, told_scale
from unsum.invert.pixels.descend import least_squares, sizes
from unsum.invert.pixels.equations import posed, read_by
from unsum.invert.pixels.guess import drawn, linear_guess
from unsum.invert.pixels.judge import Solution
from unsum.invert.pixels.own_squares import OwnSquares, compute, divided_by
from unsum.invert.pixels.photos import on_levels
from unsum.leak import Leak
from unsum.models.built import Normalize
from unsum.running.deadline import time_limit

LAYER, DEEP = "layers.1.0.conv1", "layers.2.1.conv1"  # reads 24×16², 8×4²
LABELS = torch.tensor([3, 7])
Batch = tuple[Tensor, unsum.Update, Leak]


def network(*, trained: bool) -> Narrow:
    """With weights at random and fresh BatchNorm, or, as after a training, with BatchNorm that has
    seen pictures."""
    model = Narrow(BasicBlock, [24, 24, 8])
    if not trained:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
    return model


def attacked(
    model: Narrow, layer: str = LAYER, *, train: bool = False, buffers: bool = False
) -> Batch:
    images = embedded_batch(2, image_size=16).images * 4 - 2
    model.train(train)
    return (
        images,
        unsum.capture(model, images, LABELS, train=train, buffers=buffers),
        known_at(model, images, LABELS, layer),
    )


def decibels(found: SolvedPixels, images: Tensor) -> Tensor:
    """Of the worst picture, whose values span 4."""
    return -10 * ((found.images - images) / 4).square().flatten(1).mean(1).max().log10()


@pytest.mark.parametrize("trained", [False, True])
def test_eval_mode_gives_every_pixel_and_a_claim(trained: bool) -> None:
    model = network(trained=trained)
    images, update, leak = attacked(model)
    found = solve_pixels(model, update, leak)
    assert decibels(found, images) > 90
    assert found.exact.all(), found.notes
    true = (found.images - images).flatten(1).norm(dim=1) / images.flatten(1).norm(dim=1)
    assert (true < 5 * found.errors).all()
    assert found.errors.max() < 1e-4


@pytest.mark.long
def test_train_mode_with_statistics_that_were_sent() -> None:
    model = network(trained=False)
    images, update, leak = attacked(model, train=True, buffers=True)
    found = solve_pixels(model, update, leak)
    assert decibels(found, images) > 90
    assert found.exact.all(), found.notes


@pytest.mark.long
@pytest.mark.parametrize("trained", [False, True])
def test_train_mode_without_statistics_finds_the_pictures_and_vouches_for_no_contrast(
    trained: bool,
) -> None:
    model = network(trained=trained)
    images, update, leak = attacked(model, train=True)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    found = solve_pixels(model, update, leak)
    assert decibels(found, images) > 60
    assert not found.exact.any()
    assert "scale of the whole batch" in " ".join(found.notes)
    assert "But for one contrast that all pictures share, 2 of 2 are certain" in " ".join(
        found.notes
    )
    apart = (found.images - images).flatten(1).norm(dim=1) / images.flatten(1).norm(dim=1)
    assert (apart < 5 * found.errors).all()
    factor = (found.images * images).sum() / found.images.square().sum()
    assert (factor * found.images - images).norm() < 1e-4 * images.norm()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_another_samples_map_explains_itself_but_not_the_gradient() -> None:
    model = network(trained=True)
    _, update, leak = attacked(model)
    stranger = known_at(
        model, embedded_batch(3, image_size=16).images[2:] * 4 - 2, LABELS[:1], LAYER
    ).inner[LAYER]
    maps = torch.cat([leak.inner[LAYER][:1], stranger])
    found = solve_pixels(model, update, replace(leak, inner={LAYER: maps}))
    assert found.misfit.max() < 1e-5  # both maps are some picture's
    assert not found.exact.any()


def test_a_map_that_is_off_by_a_hundredth_is_not_certified() -> None:
    model = network(trained=True)
    images, update, leak = attacked(model)
    torch.manual_seed(0)
    maps = leak.inner[LAYER] * (1 + 0.01 * torch.randn_like(leak.inner[LAYER]))
    found = solve_pixels(model, update, replace(leak, inner={LAYER: maps}))
    assert not found.exact.any()
    assert (found.errors > 1e-3).all()
    assert decibels(found, images) > 30  # near, and no more is said


@pytest.mark.long
def test_a_client_that_sums_in_another_order_is_certified_as_well() -> None:
    model = network(trained=True)
    images, _, leak = attacked(model)
    parts = [unsum.capture(model, images[[i]], LABELS[[i]], train=False).gradients for i in (1, 0)]
    update = unsum.Update({name: (parts[0][name] + parts[1][name]) / 2 for name in parts[0]})
    assert solve_pixels(model, update, leak).exact.all()
    halved = unsum.Update(
        {name: (1.001 * parts[0][name] + 0.999 * parts[1][name]) / 2 for name in parts[0]}
    )
    assert not solve_pixels(model, halved, leak).exact.any()


def test_labels_exchanged_are_not_certified() -> None:
    model = network(trained=True)
    _, update, leak = attacked(model)
    assert solve_pixels(model, update, leak).exact.all()
    assert not solve_pixels(model, update, replace(leak, targets=leak.targets.flip(0))).exact.any()


def test_maps_with_too_few_numbers_are_refused() -> None:
    model = network(trained=True)
    _, update, leak = attacked(model, DEEP)
    assert find_reach(model, leak).shape == (3, 16, 16)
    with pytest.raises(
        UnsumError, match=r"not determined.*768 numbers of a picture; train an inverse"
    ):
        solve_pixels(model, update, leak)


@pytest.mark.long
def test_the_largest_map_is_taken_and_the_shape_of_pictures_found() -> None:
    model = network(trained=True)
    _, _, leak = attacked(model)
    deep = attacked(model, DEEP)[2]
    model.image_size = None
    reach = find_reach(model, replace(leak, inner={**deep.inner, **leak.inner}))
    assert (reach.layer, reach.shape, reach.unknowns) == (LAYER, (3, 16, 16), 768)
    maps = leak.inner[LAYER]
    # what rounding may leave of a zero
    small = 1e-4 * maps.square().mean((1, 2, 3), keepdim=True).sqrt()
    assert reach.equations == int((maps.abs() > small).flatten(1).sum(1).min())


def test_the_two_products_are_the_derivative_and_its_transpose() -> None:
    model = network(trained=True)
    images, _, leak = attacked(model, train=True)
    with posed(model, leak.inner, torch.float64) as equations:
        x, v = images.double(), torch.randn_like(images.double())
        linear = equations.linear(lambda z: z, x)
        step = 1e-6
        difference = (equations.residual(x + step * v) - equations.residual(x - step * v)) / (
            2 * step
        )
        assert torch.allclose(
            linear.forward(v), difference, atol=1e-5 * float(difference.abs().max())
        )
        u = torch.randn_like(linear.residual)
        assert torch.allclose((linear.back(u) * v).sum(), (u * linear.forward(v)).sum())
        assert linear.residual.abs().max() < 1e-6  # the truth explains its maps


@pytest.mark.parametrize("trained", [False, True])
def test_a_regression_guesses_pictures_of_a_batch_in_train_mode(trained: bool) -> None:
    model = network(trained=trained)
    images, _, leak = attacked(model, train=True)
    reach = find_reach(model, leak)
    with posed(model, reach.layers, torch.float32) as equations:
        guess, explained = linear_guess(equations, reach, 0)
    assert 0.5 < explained < 0.99
    guess, truth = (
        one - one.mean((0, 2, 3), keepdim=True) for one in (guess, images)
    )  # BatchNorm hides a batch's colors
    assert (nn.functional.cosine_similarity(guess.flatten(1), truth.flatten(1)) > 0.8).all()
    assert (nn.functional.cosine_similarity(guess.flip(0).flatten(1), truth.flatten(1)) < 0.2).all()


@pytest.mark.parametrize("trained", [False, True])
def test_the_first_layers_gradients_tell_the_contrast_of_a_batch_in_train_mode(
    trained: bool,
) -> None:
    model = network(trained=trained)
    images, update, leak = attacked(model, train=True)
    for factor in (0.4, 1.0, 2.5):
        told = told_scale(model, update, factor * images, leak.targets)
        assert told is not None
        assert told.factor == pytest.approx(1 / factor, rel=1e-3)
        assert 1e-6 < told.error < 2e-3
        assert abs(told.factor * factor - 1) < 5 * told.error
    without = replace(
        update, gradients={name: g for name, g in update.gradients.items() if name != "bn1.weight"}
    )
    noisy = update.map(lambda _, g: g + 0.1 * g.norm() / g.numel() ** 0.5 * torch.randn_like(g))
    assert told_scale(model, without, images, leak.targets) is None
    # nothing is told, and no factor made up
    assert told_scale(model, noisy, images, leak.targets) is None
    assert told_scale(model.eval(), update, images, leak.targets) is None


def test_drawn_pictures_differ_and_have_the_contrast_of_a_normalized_batch() -> None:
    pictures = drawn(4, (3, 24, 20), 0)
    assert pictures.shape == (4, 3, 24, 20)
    assert float(pictures.mean()) == pytest.approx(0, abs=1e-5)
    assert float(pictures.std()) == pytest.approx(1, abs=1e-5)
    assert torch.corrcoef(pictures.flatten(1)).fill_diagonal_(0).abs().max() < 0.9
    neighbors = (pictures.diff(dim=3).square().mean() / (2 * pictures.var())).sqrt()
    assert neighbors < 0.5  # noise without structure has 1


def test_sizes_double_up_to_the_picture() -> None:
    assert sizes((3, 56, 40)) == [(1, 1), (2, 2), (4, 3), (7, 5), (14, 10), (28, 20), (56, 40)]


def test_time_that_is_over_ends_the_search() -> None:
    model = network(trained=True)
    _, update, leak = attacked(model)
    with time_limit(1e-3) as deadline:
        found = solve_pixels(model, update, leak)
    assert deadline.cut
    assert found.images.shape == (2, 3, 16, 16)
    assert not found.exact.any()


def test_errors_that_there_was_no_time_to_predict_are_infinite() -> None:
    model = network(trained=True)
    images, _, leak = attacked(model)
    reach = find_reach(model, leak)
    misfit = torch.full((2,), 1e-6).double()
    with posed(model, reach.layers, torch.float64) as equations:
        told = Solution.at(equations, reach, images.double(), misfit).errors
        over = Solution.at(replace(equations, end=0.0), reach, images.double(), misfit).errors
    assert told.max() < 1e-4
    assert over.isinf().all()


@pytest.mark.long
def test_channels_of_which_nothing_is_known_are_left_out() -> None:
    model = network(trained=True)
    images, update, leak = attacked(model)
    maps = leak.inner[LAYER].clone()
    maps[:, ::4] = torch.nan
    found = solve_pixels(model, update, replace(leak, inner={}, partly={LAYER: maps}))
    assert decibels(found, images) > 90
    assert found.exact.all(), found.notes


@pytest.mark.parametrize("train", [False, True])
def test_where_a_walk_ends_its_gradients_still_say_what_the_maps_below_are_not(train: bool) -> None:
    model = network(trained=True)
    images, update, leak = attacked(model, "layers.1.1.conv1", train=train)
    peeled = unsum.peel(model, update, leak, "residual", shape=(3, 16, 16))
    hint = peeled.hint
    assert hint is not None
    assert hint.layer == LAYER
    true = known_at(model, images, LABELS, LAYER).inner[LAYER].double()
    assert 0.3 < hint.numbers / true[0].numel() < 0.9  # too few to divide by
    assert hint.correction(true).norm() < 1e-4 * true.norm()
    off = 0.01 * torch.randn(true.shape, generator=torch.Generator().manual_seed(0)).double()
    back = hint.correction(true + off)
    assert nn.functional.cosine_similarity(back.flatten(), -off.flatten(), 0) > 0.4
    assert torch.allclose(hint.correction((true + off).float()).double(), back, atol=1e-4)


@pytest.mark.long
def test_a_hint_and_the_next_block_s_input_make_up_for_a_map_that_says_too_little() -> None:
    model = network(trained=True)
    images, update, leak = attacked(model, "layers.1.1.conv1")
    peeled = unsum.peel(model, update, leak, "residual", shape=(3, 16, 16))
    inner = leak.inner | peeled.inner
    reach = find_reach(model, replace(leak, inner=inner, hint=peeled.hint))
    assert list(reach.layers) == ["layers.1.0.conv2", "layers.1.1.conv1"]
    assert reach.equations < reach.unknowns < reach.all_equations
    found = solve_pixels(model, update, replace(leak, inner=inner, hint=peeled.hint))
    assert decibels(found, images) > 60
    assert not found.exact.any()  # by counting, the map itself does not determine them


class _Wrong:
    """A hint that contradicts the maps."""

    layer, numbers = LAYER, 1000

    def correction(self, maps: Tensor) -> Tensor:
        return maps - maps.mean((2, 3), keepdim=True)


@pytest.mark.long
def test_a_hint_that_contradicts_the_maps_is_left_out() -> None:
    model = Narrow(BasicBlock, [24, 48, 8]).eval()
    images = embedded_batch(2, image_size=16).images * 4 - 2
    update = unsum.capture(model, images, LABELS, train=False)
    inner = {
        name: known_at(model, images, LABELS, name).inner[name]
        for name in ("layers.1.0.conv2", "layers.1.1.conv1")
    }
    leak = known_at(model, images, LABELS, "layers.1.0.conv2")
    found = solve_pixels(model, update, replace(leak, inner=inner, hint=_Wrong()))
    assert found.misfit.max() < 1e-3
    assert decibels(found, images) > 60


def test_bytes_tell_the_contrast_that_batch_norm_hides() -> None:
    normalize = Normalize([0.5, 0.4, 0.3], [0.25, 0.2, 0.3])
    photos = (255 * embedded_batch(2, image_size=16).images).round() / 255
    (pictures,) = normalize(nn.Identity(), (photos,))
    for off in (0.97, 1.0, 1.02):
        found = on_levels(
            off * pictures + 1e-3 * torch.randn_like(pictures), Contrast(1.0, 0.01), normalize
        )
        assert found is not None
        assert found.factor * off == pytest.approx(1, abs=1e-4)
        assert found.error == 0.01  # what may be claimed is what was told before
    smooth = photos + torch.rand(photos.shape, generator=torch.Generator().manual_seed(0)) / 255
    assert on_levels(normalize(nn.Identity(), (smooth,))[0], Contrast(1.0, 0.01), normalize) is None
    flat = torch.full_like(pictures, 0.3)
    assert on_levels(flat, Contrast(1.0, 0.01), normalize) is None  # any contrast would do


@pytest.mark.long
def test_photos_behind_the_model_s_own_normalization_come_back_with_their_contrast() -> None:
    model = network(trained=True)
    model.register_forward_pre_hook(Normalize([0.5] * 3, [0.25] * 3))
    photos = (255 * embedded_batch(2, image_size=16).images).round() / 255
    model.train()
    update = unsum.capture(model, photos, LABELS, train=True)
    found = solve_pixels(model, update, known_at(model, photos, LABELS, LAYER))
    worst = -10 * (found.images - photos).square().flatten(1).mean(1).max().log10()
    assert worst > 85
    assert "one of 256 levels" in " ".join(found.notes)
    assert not found.exact.any()  # levels are likely, not certain


@pytest.mark.long
@pytest.mark.parametrize("train", [False, True])
def test_each_picture_s_own_squares_save_products(train: bool) -> None:
    model = network(trained=True)
    images, _, leak = attacked(model, train=train)
    with posed(model, leak.inner, torch.float64) as equations:
        x = images.double() + 0.01 * torch.randn(
            images.shape, generator=torch.Generator().manual_seed(0)
        )
        modes = [norm.training for norm in equations.norms.values()]
        compute(equations, x)
        assert [norm.training for norm in equations.norms.values()] == modes
        squares = equations.own.squares
        assert squares is not None
        linear = equations.linear(lambda z: z, x)
        if not train:  # then the whole problem is one picture's beside the other's
            column = torch.zeros_like(x)
            column[:, 1, 7, 3] = 1
            product = linear.back(linear.forward(column)).flatten(1)
            assert torch.allclose(
                squares[:, :, 256 + 7 * 16 + 3].double(), product, atol=1e-6 * float(squares.max())
            )
        helped, alone = equations, replace(equations, own=OwnSquares())
        none, tight = torch.zeros(2, 1, 1, 1).double(), torch.full((2, 1, 1, 1), 1e-6).double()
        steps = [
            least_squares(one, linear, -linear.residual, none, tight) for one in (helped, alone)
        ]
        left = [float((linear.residual + linear.forward(step)).norm()) for step in steps]
        assert left[0] == pytest.approx(left[1], rel=1e-4)
        assert helped.own.products < (40 if train else 8)
        assert alone.own.products > 4 * helped.own.products


def test_own_squares_that_rounding_has_spoiled_are_inverted_all_the_same() -> None:
    own = OwnSquares()
    J = torch.randn(8, 12, generator=torch.Generator().manual_seed(0)).double()
    own.squares = (J.T @ J - 1e-3 * torch.eye(12)).float()[None]  # four eigenvalues are below zero
    like = torch.randn(1, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    divided = divided_by(own, torch.zeros(1, 1, 1, 1), like)(like)
    assert (divided * like).sum() > 0
    seen = (J.T @ J @ like.flatten().double()).float().view_as(like)
    back = divided_by(own, torch.zeros(1, 1, 1, 1), like)(seen).flatten().double()
    assert torch.allclose(J @ back, J @ like.flatten().double(), rtol=0.02, atol=0.02)


def test_a_regression_learns_from_no_more_pictures_than_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = network(trained=True)
    _, _, leak = attacked(model)
    reach, batches = find_reach(model, leak), []

    def counted(B: int, shape: tuple[int, ...], seed: int) -> Tensor:
        batches.append(B)
        return drawn(B, shape, seed)

    monkeypatch.setattr(import_module("unsum.invert.pixels.guess"), "drawn", counted)
    with posed(model, {reach.layer: reach.maps}, torch.float32) as equations:
        with time_limit(1e-9) as deadline:
            pictures, explained = linear_guess(equations, reach, 0)
        assert (len(batches), explained, float(pictures.abs().max())) == (1, 0.0, 0.0)
        assert deadline.cut == ["a guess at the pictures by regression"]
        with time_limit(1000):
            assert linear_guess(equations, reach, 0)[1] > 0.5
    assert len(batches) > 30


@pytest.mark.parametrize(("layer", "most"), [(LAYER, 32), (DEEP, 32)])
def test_the_size_of_pictures_is_found_without_trying_huge_ones(
    layer: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures of 1,024² took seconds, each time that anybody asked how far a map reaches."""
    model = network(trained=True)
    _, _, leak = attacked(model, layer)
    tried: list[int] = []

    def read(model: nn.Module, layer: str, pictures: Tensor) -> Tensor:
        tried.append(pictures.shape[-1])
        return read_by(model, layer, pictures)

    monkeypatch.setattr(import_module("unsum.invert.pixels.reach"), "read_by", read)
    assert find_reach(model, leak).shape == (3, 16, 16)
    assert max(tried) <= most
