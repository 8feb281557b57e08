"""Labels by exchange: batches of a trained head with more samples than half the classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.starts import without_starts


def trained_case(seed: int, steps: int = 20) -> tuple[nn.Linear, Tensor, Tensor]:
    """A head of 24 classes, trained on features that crowd around their class's center, and 14 samples.

    Features may be negative: with zeros among them samples would be found one by one (`extraction_sparse`).
    """
    torch.manual_seed(seed)
    centers, labels = torch.randn(24, 128), torch.randint(24, (600,))
    features = 0.8 * centers[labels] + torch.randn(600, 128)
    head = nn.Linear(128, 24)
    optimizer = torch.optim.Adam(head.parameters(), 3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features), labels).backward()
        optimizer.step()
    return head, features[:14], labels[:14]


def test_labels_that_the_regression_miscounts_are_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    head, features, labels = trained_case(seed=1)
    update = unsum.capture(head, features, labels)
    leak = unsum.separate(head, update)
    scores = unsum.score(leak, features=features, targets=labels)
    assert leak.exact
    assert scores["worst_feature_error"] < 1e-3
    assert leak.targets.argmax(1).sort().values.tolist() == labels.sort().values.tolist()

    without_starts(monkeypatch, "exchanged")  # what it took
    without = unsum.separate(head, update)
    assert not without.exact
    assert unsum.score(without, features=features)["worst_feature_error"] > 0.1


def test_a_label_row_of_positive_bias_gradient_is_found() -> None:
    """Other samples' predictions outweigh a label there: its sign says that nobody carries it."""
    head, features, labels = trained_case(seed=1)
    update = unsum.capture(head, features, labels)
    hidden = labels[update.gradients["bias"][labels] > 0]
    assert len(hidden) > 0
    found = unsum.separate(head, update).targets.argmax(1).tolist()
    assert set(hidden.tolist()) <= set(found)


def test_a_scaled_gradient_gives_no_first_counts() -> None:
    """Exchanges assume a mean over the batch; what contradicts that is left to the other starts and never claimed."""
    head, features, labels = trained_case(seed=1)
    update = unsum.capture(head, features, labels)
    larger = unsum.Update({name: 7 * value for name, value in update.gradients.items()})
    leak = unsum.separate(head, larger)
    assert not leak.exact or unsum.score(leak, features=features)["worst_feature_error"] < 1e-2
