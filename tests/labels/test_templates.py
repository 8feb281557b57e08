"""Counts by likelihood: against sums over all labelings, and under noise against what is known."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unsum
from unsum import UnsumError
from unsum.head import Head, collect_features
from unsum.labels.counts import at_least, count_posterior
from unsum.labels.feature_prior import FeaturePrior, feature_prior
from unsum.labels.templates import count_evidence


def by_hand(logs: Tensor, size: int) -> tuple[float, Tensor]:
    """The same over all C^B labelings, one after the other."""
    C = len(logs)
    total, marginals = 0.0, torch.zeros_like(logs)
    for labels in itertools.product(range(C), repeat=size):
        counts = [labels.count(c) for c in range(C)]
        weight = math.exp(sum(float(logs[c, n]) for c, n in enumerate(counts))) / C**size
        total += weight
        for c, n in enumerate(counts):
            marginals[c, n] += weight
    return total, marginals / total


@given(st.integers(2, 4), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_posterior_is_the_sum_over_all_labelings(classes: int, size: int, seed: int) -> None:
    logs = 2 * torch.randn(
        classes, size + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    evidence, marginals = count_posterior(torch.stack([logs, logs.flip(0)]), size)
    total, expected = by_hand(logs, size)
    torch.testing.assert_close(evidence.exp(), torch.full((2,), total, dtype=torch.float64))
    torch.testing.assert_close(marginals[0], expected)
    torch.testing.assert_close(marginals[1], expected.flip(0))
    assert float(at_least(marginals[0]).sum()) == pytest.approx(size)


def test_two_classes_and_one_sample_by_hand() -> None:
    """Rows lowered by features of a known mean: the odds of the two labels follow from one
    difference of rows."""
    W = torch.zeros(2, 3, dtype=torch.float64)
    mean = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    prior = FeaturePrior(mean.expand(4, -1), mean, 4, non_negative=True)
    rows = 0.5 * torch.stack([mean, -mean])  # (p − y) f for p = (½, ½), y = 1
    found = count_evidence(Head("", W, None, rows, None), prior, 0.3, 1)
    assert found.labels.tolist() == [1]
    assert float(found.chance[1, 0]) > 0.99
    # Without any difference both labels are as likely.
    nothing = count_evidence(Head("", W, None, torch.zeros_like(rows), None), prior, 0.3, 1)
    torch.testing.assert_close(nothing.chance[:, 0], torch.full((2,), 0.5, dtype=torch.float64))


def relu_net(classes: int = 20) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 400), nn.ReLU(), nn.Linear(400, classes))


def noisy(
    model: nn.Module, images: Tensor, labels: Tensor, sigma: float, draw: int
) -> unsum.Update:
    torch.manual_seed(100 + draw)
    return unsum.Noise(sigma)(unsum.capture(model, images, labels))


def right(found: Tensor, labels: Tensor, classes: int) -> int:
    return int(
        torch.minimum(*(torch.bincount(each, minlength=classes) for each in (found, labels))).sum()
    )


def test_labels_are_read_through_noise_that_hides_them_from_single_entries() -> None:
    model, labels = relu_net(), torch.tensor([3, 3, 7, 12, 12, 12])
    generator = torch.Generator().manual_seed(1)
    images, public = (
        torch.rand(6, 3, 8, 8, generator=generator),
        torch.rand(8, 3, 8, 8, generator=generator),
    )
    size = float(collect_features(model, images).square().mean().sqrt())
    found = []
    for draw in range(5):  # noise is six times what one sample leaves in an entry
        update = noisy(model, images, labels, size, draw)
        found.append(
            right(unsum.labels(model, update, "templates", batch_size=6, public=public), labels, 20)
        )
    assert sum(found) / len(found) >= 4.5
    update = noisy(model, images, labels, size / 100, 0)
    assert (
        unsum.labels(model, update, "templates", batch_size=6, public=public).tolist()
        == labels.tolist()
    )
    # and how many they are, but never more than the client declares
    assert unsum.labels(model, update, "templates", public=public).tolist() == labels.tolist()
    declared = replace(update, num_examples=4)
    assert len(unsum.labels(model, declared, "templates", public=public)) <= 4
    assert unsum.separate(model, declared, "adaptive", public=public).batch_size <= 4


def test_labels_are_guesses_where_noise_is_all_there_is() -> None:
    model, labels = relu_net(), torch.arange(6)
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    head = Head.of(model, noisy(model, images, labels, 1e3, 0))
    prior = feature_prior(head, model, images.flip(3))
    assert prior is not None
    chance = count_evidence(head, prior, 1e3, 6).chance[:, 0]
    assert float(chance.max()) < 0.4  # 1 − (19/20)⁶ = 0.26 before the update is seen
    assert count_evidence(head, prior, 1e3, None).size == 1  # of equal explanations the smallest


def test_random_inputs_take_the_place_of_public_ones() -> None:
    model = relu_net()
    images = torch.rand(4, 3, 8, 8)
    labels = torch.tensor([1, 5, 5, 9])
    update = noisy(model, images, labels, 1e-3, 0)
    assert unsum.labels(model, update, "templates", batch_size=4).tolist() == labels.tolist()


def test_what_it_cannot_do_is_refused() -> None:
    model = nn.Linear(30, 5)
    update = unsum.capture(model, torch.rand(2, 30), torch.tensor([0, 1]))
    with pytest.raises(UnsumError, match="give public inputs"):
        unsum.labels(model, update, "templates", batch_size=2)
    with pytest.raises(UnsumError, match="from two of them on"):
        unsum.labels(model, update, "templates", batch_size=2, public=torch.rand(1, 30))
    with pytest.raises(UnsumError, match="counts up to 256"):
        unsum.labels(model, update, "templates", batch_size=300, public=torch.rand(4, 30))
