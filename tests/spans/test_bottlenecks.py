"""Bottlenecks: every sample with what the block itself read, held against the truth; and what is
left where that is not told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unsum
from support.long import long
from support.maps import bottleneck, client
from unsum.certify.claim import Claim
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.spans.maps import bottleneck as bottlenecks
from unsum.spans.maps import method, pooled, rows, solve
from unsum.spans.maps.asked import Asked
from unsum.spans.maps.condition import MapCondition
from unsum.spans.maps.judge import judge


def _closed(model: nn.Sequential) -> nn.Sequential:
    """A bottleneck whose first norm is frozen, so that nothing tells what the block itself read."""
    model[1].bn1.requires_grad_(False)
    return model


@pytest.mark.parametrize("moved", ["means", "factor"])
def test_what_batchnorm_hides_is_checked_by_the_shortcut(moved: str) -> None:
    """Of a bottleneck in train mode: another mean of its channels, or another factor of all maps,
    is never certified."""
    sent = client(bottleneck(classes=2), [0, 1, 1])
    known = Knowledge(batch_size=len(sent.labels))
    given = method.answer_of(Head.of(sent.model, sent.update), known, sent.model, sent.update)
    assert judge(given, known, 0).exact
    means = given.maps.mean((0, 2, 3), keepdim=True)
    maps = given.maps + 0.01 * means if moved == "means" else 1.01 * given.maps
    asked = Asked(Head.of(sent.model, sent.update), known, sent.model, sent.update, None, 0)
    tail, reading, played = given.tail.settled(asked, maps, given.errors)
    claim = judge(replace(given, maps=maps, reading=reading, played=played, tail=tail), known, 0)
    assert not claim.exact
    assert played.replay.unexplained > 1e-4


def test_a_block_s_input_that_explains_nothing_does_not_displace_the_maps_above_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two classes: features are open above the block, so that no prediction is finite there; maps
    are right all the same."""
    sent = client(bottleneck(classes=2), [0, 1, 1])
    whole = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    lost = Claim(False, 8.0, ["The block's input was lost."])
    monkeypatch.setattr(method, "judge", lambda *_: lost)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert whole.exact
    assert len(whole.inner) == 2
    assert not leak.exact
    (name,) = leak.inner
    apart = torch.cdist(leak.inner[name].flatten(1), whole.inner[name].flatten(1)).amin(1)
    assert bool((apart < 1e-3 * whole.inner[name].flatten(1).norm(dim=1).min()).all())


def test_rows_of_a_one_by_one_convolution_in_train_mode() -> None:
    """Deviations and closed places follow from the gradient alone: rows come back but for their
    mean and one factor."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(24, 80, generator=generator, dtype=torch.float64).relu()
    W = (
        torch.randn(40, 80, generator=generator, dtype=torch.float64)
        * torch.logspace(-1, 1, 40, dtype=torch.float64)[:, None]
    )
    gamma, beta = (
        torch.rand(40, generator=generator, dtype=torch.float64) + shift for shift in (0.5, -0.3)
    )
    z = (X @ W.T).requires_grad_()
    parameters = [gamma.requires_grad_(), beta.requires_grad_()]
    y = F.batch_norm(z, None, None, *parameters, training=True)
    written = y.relu()
    above = torch.randn(24, 40, generator=generator, dtype=torch.float64)
    D, grad_gamma, grad_beta, d = torch.autograd.grad(written, [z, *parameters, y], above)
    behind = rows.Behind(
        True,
        W,
        D.T @ X,
        gamma.detach(),
        beta.detach(),
        grad_gamma,
        grad_beta,
        torch.ones(40, dtype=torch.float64),
    )
    read = rows.read_rows(behind, d, *rows.where_on(written.detach(), behind))
    assert read is not None
    centered = X - X.mean(0)
    factor = (read.rows * centered).sum() / read.rows.square().sum()
    assert float((factor * read.rows - centered).norm() / centered.norm()) < 1e-6
    twice = (torch.cat([one, one]) for one in (d, *rows.where_on(written.detach(), behind)))
    assert rows.read_rows(behind, *twice) is None  # more places than channels


@pytest.mark.parametrize(
    ("train", "labels"), [(False, [4, 1, 4]), (True, [4, 1, 4]), *long((True, [2, 2, 2]))]
)
def test_bottlenecks(train: bool, labels: list[int]) -> None:
    """What stands beside the last convolutions is not known; labels and features follow from what
    pooling sends back."""
    sent = client(bottleneck(), labels, train=train)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert leak.batch_size == 3
    assert leak.exact, leak.notes
    error = unsum.score(leak, features=sent.features, targets=sent.labels)["worst_feature_error"]
    assert error < min(2e-4, leak.predicted_error)
    assert sorted(leak.labels.tolist()) == sorted(labels)


def test_samples_of_a_bottleneck_that_send_nothing_are_not_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As found where what the last convolution sends fits no gates at all."""

    def nothing(_: pooled.Normed, E: Tensor, head: Head, samples: int) -> pooled.Above:
        gates = torch.zeros(samples, len(E) // samples, E.shape[1], dtype=torch.bool)
        return pooled.Above(E.new_zeros(samples, len(head.W)), gates, 1.0)

    sent = client(_closed(bottleneck()), [4, 1, 4], train=False)
    monkeypatch.setattr(bottlenecks, "read_above", nothing)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=len(sent.labels))
    assert leak.batch_size == 0
    assert "neither labels nor features" in leak.notes[0]


@pytest.mark.parametrize(("train", "labels"), [(True, [0, 1, 1]), (False, [1, 1, 1])])
def test_a_bottleneck_s_own_input_needs_no_classes(train: bool, labels: list[int]) -> None:
    """Two classes do not determine features; what the block read does, and it is claimed with its
    mean and its factor."""
    sent = client(bottleneck(classes=2), labels, train=train)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert list(leak.inner) == ["1.conv1", "1.conv2"]
    assert float(sent.errors(leak).max()) < 1e-4
    assert unsum.score(leak, features=sent.features)["worst_feature_error"] < 5e-5
    assert leak.exact, leak.notes
    assert leak.predicted_error < 5e-4


def test_a_bottleneck_of_two_classes_gives_labels_and_maps() -> None:
    """Where its input is not told features are not determined, and nothing is claimed about
    them."""
    sent = client(_closed(bottleneck(classes=2)), [0, 1, 1])
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=len(sent.labels))
    assert list(leak.inner) == ["1.conv2"]
    assert sorted(leak.labels.tolist()) == [0, 1, 1]
    assert not leak.exact
    assert leak.predicted_error == float("inf")


def test_a_part_of_a_bottleneck_s_samples_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all starts are one and the same, most samples are missing: nothing is returned, and the
    note says how many."""
    drawn = solve._starts

    def one(condition: MapCondition, number: int, generator: torch.Generator) -> Tensor:
        return drawn(condition, 1, torch.Generator().manual_seed(0)).expand(number, -1)

    monkeypatch.setattr(solve, "_starts", one)
    monkeypatch.setattr(solve, "beside", lambda found, number, _: found[:1].expand(number, -1))
    sent = client(bottleneck(), [4, 1, 4], train=False)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=3)
    assert leak.batch_size == 0
    assert "of 3 samples were told apart" in leak.notes[0]
    assert "no sign" in leak.notes[0]


def test_without_its_first_convolution_s_gradient() -> None:
    """Without the gradient of the block's first convolution its input is not told; features are the
    head's to tell."""
    sent = client(bottleneck(), [4, 1, 4], train=False)
    update = replace(
        sent.update,
        gradients={n: g for n, g in sent.update.gradients.items() if n != "1.conv1.weight"},
    )
    leak = unsum.separate(sent.model, update, "spans", batch_size=3)
    assert list(leak.inner) == ["1.conv2"]
    assert unsum.score(leak, features=sent.features)["worst_feature_error"] < 2e-4
    assert leak.exact, leak.notes


def test_what_pooling_sent_back_is_solved_for_by_weights() -> None:
    """Each sample's G is the least-squares solution with its own weights, zeros among them."""
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    g = torch.randn(3, 9, generator=generator, dtype=torch.float64)
    weight = torch.rand(3, 9, generator=generator, dtype=torch.float64)
    weight[0, :4] = 0
    found = pooled._least(W, g, weight)
    for row, target, weights in zip(found, g, weight.sqrt(), strict=True):
        exact = torch.linalg.lstsq((W * weights).T, (target * weights)[:, None]).solution[:, 0]
        torch.testing.assert_close(row, exact)
