from __future__ import annotations

import pytest
import torch
from torch import nn

from support.material import pictures, small_net
from unsum import Prune, UnsumError, Update, capture, score, separate, smooth_labels
from unsum.client.capture import in_mode
from unsum.head import collect_features


def features_of(net: nn.Module, images: torch.Tensor) -> torch.Tensor:
    with in_mode(net, True):
        return collect_features(net, images)


def test_distinct_labels_give_labels_and_nearly_the_features(net: nn.Sequential) -> None:
    images, targets = pictures(6), torch.tensor([3, 9, 12, 20, 31, 39])
    leak = separate(net, capture(net, images, targets), "fgla")
    figures = score(leak, targets=targets, features=features_of(net, images))
    assert leak.labels.tolist() == targets.tolist()
    assert figures["label_correct"] == 1
    assert figures["feature_cosine"] > 0.99
    assert 1e-4 < figures["feature_error"] < 0.15  # an approximation: exact it is not
    assert leak.residual < 0.1
    assert not leak.exact
    torch.testing.assert_close(
        leak.logits.float(), net[5](leak.features).detach(), rtol=1e-3, atol=1e-4
    )


def test_one_sample_follows_in_closed_form(net: nn.Sequential) -> None:
    """B = 1: the others' share vanishes and the ratio of row and bias is the feature vector
    itself."""
    images = pictures(1)
    update = capture(net, images, torch.tensor([7]), train=False)
    leak = separate(net, update, "fgla")
    ratio = update.gradients["5.weight"][7] / update.gradients["5.bias"][7]
    torch.testing.assert_close(leak.features[0], ratio)
    torch.testing.assert_close(
        leak.features, collect_features(net.eval(), images), rtol=1e-4, atol=1e-6
    )


def test_duplicate_labels_come_back_as_one_mean_and_are_named(net: nn.Sequential) -> None:
    images, targets = pictures(4), torch.tensor([3, 3, 12, 20])
    leak = separate(net, capture(net, images, targets), "fgla", labels=targets)
    assert torch.equal(leak.features[0], leak.features[1])
    mean = features_of(net, images)[:2].mean(0)
    assert float((leak.features[0] - mean).norm() / mean.norm()) < 0.1
    assert any("4 samples share 3 labels" in note for note in leak.notes)


def test_a_granted_batch_size_is_used(net: nn.Sequential) -> None:
    leak = separate(net, capture(net, pictures(6), torch.arange(6)), "fgla", batch_size=4)
    assert leak.batch_size == 4
    assert set(leak.labels.tolist()) <= set(range(6))
    assert any("batch size (4)" in sentence for sentence in leak.knowledge.granted())


def test_no_bias_is_refused_with_the_way_out() -> None:
    net = small_net(bias=False)
    with pytest.raises(UnsumError, match="needs the head's bias gradient; use 'exact'"):
        separate(net, capture(net, pictures(2), torch.tensor([0, 1])), "fgla")


def test_every_class_present_is_refused() -> None:
    net = small_net(classes=3)
    with pytest.raises(UnsumError, match="a class that no sample carries"):
        separate(net, capture(net, pictures(3), torch.arange(3)), "fgla", labels=torch.arange(3))


def test_unknown_methods_are_refused(net: nn.Sequential) -> None:
    with pytest.raises(UnsumError, match="no attack 'flga'; did you mean 'fgla'"):
        separate(net, capture(net, pictures(2), torch.tensor([0, 1])), "flga")


def test_the_published_formula_value_by_value(net: nn.Sequential) -> None:
    targets = torch.tensor([3, 3, 12])
    update = capture(net, pictures(3), targets)
    grad_W, grad_b = update.gradients["5.weight"].double(), update.gradients["5.bias"].double()
    others = [c for c in range(40) if c not in (3, 12)]
    o_W, o_b = grad_W[others].mean(0) * 2 / 3, grad_b[others].mean() * 2 / 3
    expected = torch.stack([(grad_W[y] - o_W) / (grad_b[y] - o_b) for y in targets.tolist()])
    leak = separate(net, update, "fgla", labels=targets)
    torch.testing.assert_close(leak.features.double(), expected, rtol=1e-5, atol=1e-7)
    summed = Update({name: 3 * g for name, g in update.gradients.items()}, reduction="sum")
    torch.testing.assert_close(
        separate(net, summed, "fgla", labels=targets).features, leak.features
    )


def test_pruned_bias_entries_and_columns_are_counted_and_come_back_as_zero(
    net: nn.Sequential,
) -> None:
    targets = torch.tensor([3, 9, 12])
    whole = capture(net, pictures(3), targets)
    grad_W, grad_b = whole.gradients["5.weight"].clone(), whole.gradients["5.bias"].clone()
    grad_b[9] = 0
    grad_W[:, :5] = 0
    pruned = Update({**whole.gradients, "5.weight": grad_W, "5.bias": grad_b})
    leak = separate(net, pruned, "fgla", labels=targets)
    assert torch.equal(leak.features[1], torch.zeros(128))
    assert torch.equal(leak.features[:, :5], torch.zeros(3, 5))
    expected = separate(net, whole, "fgla", labels=targets).features[[0, 2], 5:]
    torch.testing.assert_close(leak.features[[0, 2], 5:], expected, rtol=1e-2, atol=1e-3)
    assert any("1 of 3 labels have no bias gradient left" in note for note in leak.notes)
    assert any("5 of 128 features are zero in every label row" in note for note in leak.notes)


def test_hard_pruning_leaves_finite_numbers(net: nn.Sequential) -> None:
    targets = torch.tensor([3, 9, 12])
    leak = separate(
        net, capture(net, pictures(3), targets, defenses=Prune(0.99)), "fgla", labels=targets
    )
    assert bool(leak.features.isfinite().all())
    assert any("no bias gradient left" in note for note in leak.notes)


def test_soft_labels_are_used_by_their_largest_entry_and_said_to_be(net: nn.Sequential) -> None:
    rows = smooth_labels(torch.tensor([3, 9]), 0.1, 40)
    leak = separate(net, capture(net, pictures(2), rows), "fgla", labels=rows)
    assert leak.labels.tolist() == [3, 9]
    assert any("soft" in note for note in leak.notes)
