"""Imprint: what it reads, what it vouches for, and that the model behind it works as before."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
import torchvision
from torch import Tensor, nn

import unsum
from support.active_photos import SIZE, cut, distances
from unsum import UnsumError, active
from unsum.active.method import in_range, on_grid

SHAPE = (3, SIZE, SIZE)


def alone_in_bins(reader: active.Reader, x: Tensor) -> Tensor:
    """(B,) whether a sample shares its bin with no other, from the truth."""
    bins = torch.bucketize(x.flatten(1).double() @ reader.h.double(), reader.thresholds).tolist()
    return torch.tensor([Counter(bins)[place] == 1 for place in bins])


@pytest.mark.parametrize("network", ["plain", "convolutional"])
@pytest.mark.parametrize("grid", [True, False])
def test_every_sample_alone_in_its_bin_is_read_and_certified_and_no_other(
    network: str, grid: bool, request: pytest.FixtureRequest
) -> None:
    model, missed = request.getfixturevalue(network), 0
    for seed in range(4):
        x = cut(40, seed, grid=grid)
        changed, reader = active.modify(model, "imprint:bins=64", shape=SHAPE, seed=seed)
        found = reader.read(unsum.capture(changed, x, torch.arange(40)))
        expected = alone_in_bins(reader, x)
        assert 5 < int(expected.sum()) < 40
        single = (
            found.errors.isfinite()
        )  # off the grid only the batch size tells one sample from several that resemble it
        assert torch.equal(found.exact, single if grid else torch.zeros_like(single))
        psnr, partner = distances(found.inputs[single], x).max(1)
        assert float(psnr.min()) > 60
        hits = set(expected.nonzero().flatten().tolist())
        assert len(set(partner.tolist())) == len(partner)
        assert set(partner.tolist()) <= hits
        missed += len(hits - set(partner.tolist()))
    # Off the grid only the witness tells, and now and then a sample's effect on it vanishes by
    # chance (one of 160 here).
    assert missed <= (0 if grid else 2)


def siblings(x: Tensor, distance: float) -> Tensor:
    """x and as many that differ by `distance`, of the same brightness, so that they share a bin."""
    d = torch.randn_like(x)
    d = d - d.flatten(1).mean(1).view(-1, 1, 1, 1)
    size = distance * x.flatten(1).norm(dim=1) / d.flatten(1).norm(dim=1)
    return torch.cat([x, x + size.view(-1, 1, 1, 1) * d])


@pytest.mark.parametrize("server", ["imprint:bins=64", "traps"])
def test_the_mean_of_siblings_is_not_vouched_for(plain: nn.Sequential, server: str) -> None:
    """They act alike on both layers, and on every row: each reads the same mean."""
    for seed in range(3):
        x = siblings(cut(4, seed, grid=False), 0.1)
        changed, recipe = active.modify(plain, server, shape=SHAPE, seed=seed)
        update = unsum.capture(changed, x, torch.arange(4).repeat(2))
        for said in (None, len(x)):
            found = recipe.read(replace(update, batch_size=said))
            apart = torch.cdist(found.inputs.flatten(1), x.flatten(1)) / x.flatten(1).norm(dim=1)
            assert bool((apart.amin(1)[found.exact] < 1e-2).all())


def test_as_many_filled_bins_as_samples_prove_that_each_is_alone(plain: nn.Sequential) -> None:
    x = torch.linspace(0.3, 1.7, 5).view(-1, 1, 1, 1) * cut(1, grid=False) / 1.7
    changed, recipe = active.modify(plain, shape=SHAPE)
    update = unsum.capture(changed, x, torch.arange(5))
    assert not bool(recipe.read(update).exact.any())
    assert any("only the batch size would tell" in note for note in recipe.read(update).notes)
    told = recipe.read(replace(update, batch_size=5))
    assert told.exact.tolist() == [True] * 5
    assert float(distances(told.inputs, x).max(1).values.min()) > 60
    assert not bool(recipe.read(replace(update, batch_size=6)).exact.any())


def test_the_model_behind_it_works_as_before(convolutional: nn.Sequential) -> None:
    x = cut(8)
    convolutional.eval()
    changed, _ = active.modify(convolutional, shape=SHAPE, strength=1e-6)
    assert not changed.training
    torch.testing.assert_close(changed(x), convolutional(x), atol=1e-4, rtol=1e-4)
    assert unsum.head.find_head(changed)[0] == "model.5"


def test_it_goes_in_front_of_a_network_of_torchvisions_at_its_own_size() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10)
    changed, reader = active.modify(model, "imprint:bins=8")
    assert reader.shape == (3, 224, 224)
    x = torch.rand(2, 3, 224, 224) * torch.tensor([0.3, 1.4]).view(2, 1, 1, 1)
    x = (255 * x.clamp(0, 1)).round() / 255
    found = reader.read(unsum.capture(changed, x, torch.tensor([1, 2])))
    assert found.exact.tolist() == [True, True]
    assert float(distances(found.inputs, x).max(1).values.min()) > 60


def test_one_sample_copies_and_a_crowd(plain: nn.Sequential) -> None:
    changed, reader = active.modify(plain, shape=SHAPE)
    x = cut(6, seed=3)
    one = reader.read(unsum.capture(changed, x[:1], torch.tensor([5])))
    assert one.exact.tolist() == [True]
    assert float(distances(one.inputs, x[:1])) > 100

    copies = reader.read(unsum.capture(changed, torch.cat([x[:3], x[:1], x[:1]]), torch.arange(5)))
    assert copies.exact.tolist() == [True] * 3  # the picture, once; how often is not known
    assert any("Copies of one picture" in note for note in copies.notes)

    level = x * (0.3 / x.flatten(1).mean(1)).view(-1, 1, 1, 1)
    crowd = reader.read(unsum.capture(changed, level.clamp(0, 1), torch.arange(6)))
    assert not bool(crowd.exact.any())
    assert float(distances(crowd.inputs, level).max()) < 40
    assert "whose mixture is shown and not vouched for" in crowd.notes[0]


def test_a_mixture_off_the_grid_is_told_by_the_witness_alone(plain: nn.Sequential) -> None:
    """Two samples in one bin, with positive weights: possible pixels, the right bin, and still not
    vouched for."""
    changed, reader = active.modify(plain, "imprint:bins=4", shape=SHAPE)
    flagged = 0
    for seed in range(20):
        x = cut(2, seed, grid=False)
        x = x * (0.3 / x.flatten(1).mean(1)).view(-1, 1, 1, 1)
        found = reader.read(unsum.capture(changed, x, torch.tensor([1, 2])))
        assert not bool(found.exact.any())
        flagged += bool(in_range(found.inputs.double(), (0, 1)).all())
    assert flagged >= 3  # range and bin alone would have let these pass


def test_local_steps_are_answered_honestly(plain: nn.Sequential) -> None:
    changed, reader = active.modify(plain, shape=SHAPE)
    x = cut(8, seed=5)
    for rate, epochs in ((1.0, 1), (0.1, 3), (0.001, 2)):
        update = unsum.capture_local(
            changed, x, torch.arange(8), learning_rate=rate, epochs=epochs, batch_size=4
        )
        found = reader.read(update)
        if bool(found.exact.any()):
            assert float(distances(found.inputs[found.exact], x).max(1).values.min()) > 40
    leak = active.attack(changed, update, reader)
    assert not bool(leak.inputs_exact.any())
    assert any("nothing was read" in note for note in leak.notes)


@pytest.mark.parametrize(
    "defense",
    [unsum.Noise(1e-3), unsum.Noise(1e-6), unsum.Float16(), unsum.Prune(0.9), unsum.Sign()],
)
def test_defended_updates_are_never_vouched_for_wrongly(
    plain: nn.Sequential, defense: unsum.Noise
) -> None:
    changed, reader = active.modify(plain, shape=SHAPE)
    x = cut(12, seed=7, grid=False)
    torch.manual_seed(0)
    found = reader.read(unsum.capture(changed, x, torch.arange(12), defenses=defense))
    if bool(found.exact.any()):
        assert float(distances(found.inputs[found.exact], x).max(1).values.min()) > 40


def test_auxiliary_inputs_and_other_queries(plain: nn.Sequential) -> None:
    own, x = cut(600, seed=11), cut(16, seed=12)
    for query in ("brightness", "random"):
        changed, reader = active.modify(plain, "imprint", shape=SHAPE, auxiliary=own, query=query)
        found = reader.read(unsum.capture(changed, x, torch.arange(16)))
        assert int(found.exact.sum()) == int(alone_in_bins(reader, x).sum()) >= 8
        assert "600 auxiliary inputs" in reader.photos
    counts = torch.bincount(
        torch.bucketize(own.flatten(1).double() @ reader.h.double(), reader.thresholds),
        minlength=129,
    )
    assert int(counts[1:].max()) <= 8  # 600 / 128 bins are 4.7 each


def test_the_expected_number_of_hits() -> None:
    """By hand for two samples and two bins, and by simulation."""
    assert active.chance_of_hits(2, 2) == 1.0  # one half of the time both are alone
    # of the three fillings one
    assert math.isclose(active.chance_of_hits(2, 2, auxiliary=1), 2 / 3)
    generator = torch.Generator().manual_seed(0)
    fair, ranked = [], []
    for _ in range(2000):
        bins = torch.randint(128, (64,), generator=generator)
        fair.append(int((torch.bincount(bins) == 1).sum()))
        thresholds, values = (
            torch.rand(127, generator=generator).sort().values,
            torch.rand(64, generator=generator),
        )
        ranked.append(int((torch.bincount(torch.bucketize(values, thresholds)) == 1).sum()))
    assert abs(sum(fair) / 2000 - active.chance_of_hits(64, 128)) < 0.3
    assert abs(sum(ranked) / 2000 - active.chance_of_hits(64, 128, auxiliary=127)) < 0.3
    with pytest.raises(UnsumError, match="holds for 127"):
        active.chance_of_hits(64, 128, auxiliary=500)


def test_evidence() -> None:
    picture = torch.randint(256, (2, 3, 8, 8)).double() / 255
    mixture = 0.3 * picture[:1] + 0.7 * picture[1:]
    assert on_grid(picture).tolist() == [True, True]
    assert on_grid(mixture).tolist() == [False]
    assert on_grid(torch.full((1, 3, 8, 8), 0.2)).tolist() == [False]  # one tone tells nothing
    assert in_range(torch.tensor([[0.0, 1.0], [0.0, 1.01]]), (0, 1)).tolist() == [True, False]
    assert in_range(torch.tensor([[-3.0, 9.0]]), None).tolist() == [True]


@pytest.mark.parametrize(
    ("server", "options", "message"),
    [
        ("imprit", {}, "did you mean 'imprint'"),
        ("imprint:bin=4", {}, "did you mean 'bins'"),
        ("imprint:bins=4.5", {}, "is a whole number"),
        ("imprint:bins", {}, "NAME:OPTION=VALUE"),
        ("imprint:bins=1", {}, "at least two bins"),
        ("imprint:query=random", {}, "give auxiliary inputs"),
        ("imprint:query=loud", {}, "There is no query"),
        ("imprint", {"auxiliary": torch.rand(4, 3, 8, 8)}, "must be of the shape"),
        ("traps:sigma=-1", {}, "a positive sigma"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    plain: nn.Sequential, server: str, options: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(UnsumError, match=message):
        active.modify(plain, server, shape=SHAPE, **options)


def test_an_update_of_another_model_is_refused(plain: nn.Sequential) -> None:
    _, reader = active.modify(plain, shape=SHAPE)
    with pytest.raises(UnsumError, match=r"lacks 'front\.rows\.weight'"):
        reader.read(unsum.capture(plain, cut(2), torch.tensor([0, 1])))
