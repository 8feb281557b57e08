"""Labels by exchange: batches of a trained head with more samples than half the classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.starts import without_starts
from unsum.equation.noise import Noise
from unsum.equation.observation import Observation
from unsum.separate.exact.exchange import first_counts
from unsum.separate.exact.regression import ClassLine


def trained_case(seed: int, steps: int = 20) -> tuple[nn.Linear, Tensor, Tensor]:
    """A head of 24 classes, trained on features that crowd around their class's center, and 14
    samples.

    Features may be negative: with zeros among them samples would be found one by one
    (`extraction_sparse`).
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


def test_labels_that_the_regression_miscounts_are_exchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def observed(b: list[float], samples: int) -> Observation:
    """A head whose weights are zero: every sample's probabilities are softmax(b)."""
    C, R = len(b), samples
    zeros = torch.zeros(R, C, dtype=torch.float64)
    noise = Noise(torch.zeros(len(b), dtype=torch.float64), added=False, relative=0.0)
    b64 = torch.tensor(b, dtype=torch.float64)
    return Observation(
        zeros.T, zeros, zeros, b64, None, noise, torch.ones_like(b64), 1.0, "mean", b64.abs(), 1e-7
    )


def class_line(labeled: list[bool], samples: int) -> ClassLine:
    R, C = samples, len(labeled)
    none, flat = torch.zeros(R, dtype=torch.float64), torch.zeros(R, R, dtype=torch.float64)
    shares = torch.zeros(C, dtype=torch.float64)
    return ClassLine(
        torch.tensor(labeled), none, flat, 1.0, shares, torch.zeros(C, R, dtype=torch.float64)
    )


def test_signs_prove_so_many_samples_and_the_regression_gives_the_rest() -> None:
    """Three samples of p = ¼ each, labels 0, 0 and 1: ∇b = (¾ − 2, ¾ − 1, ¾, ¾) / 3. No p is
    negative, so −3 ∇b = (1¼, ¼) proves two samples of class 0 and one of class 1, though the
    assumed p̄ would rather have one of class 2."""
    grad_b = torch.tensor([-1.25, -0.25, 0.75, 0.75], dtype=torch.float64) / 3
    misled = observed([-10.0, -10.0, 0.5, 0.0], 3)
    counts = first_counts(misled, class_line([True, True, True, False], 3), grad_b)
    assert counts is not None
    assert counts.tolist() == [2, 1, 0, 0]


def test_what_signs_leave_open_goes_where_the_most_is_missing() -> None:
    """Four samples of p = ¼, labels 0, 0, 1 and 2: −4 ∇b = (1, 0, 0) proves one of class 0 alone.
    Each class sends p̄ = 1 more than its count leaves, so the masses are 2, 1, 1 and 0, and the
    three that are missing go to 0, 1 and 2."""
    grad_b = torch.tensor([-1.0, 0.0, 0.0, 1.0], dtype=torch.float64) / 4
    counts = first_counts(observed([0.0] * 4, 4), class_line([True, True, True, False], 4), grad_b)
    assert counts is not None
    assert counts.tolist() == [2, 1, 1, 0]


def test_more_samples_than_there_are_contradict_the_signs() -> None:
    grad_b = torch.tensor([-2.2, -0.9, 1.55, 1.55], dtype=torch.float64) / 3
    assert (
        first_counts(observed([0.0] * 4, 3), class_line([True, True, False, False], 3), grad_b)
        is None
    )


def test_a_label_row_of_positive_bias_gradient_is_found() -> None:
    """Other samples' predictions outweigh a label there: its sign says that nobody carries it."""
    head, features, labels = trained_case(seed=1)
    update = unsum.capture(head, features, labels)
    hidden = labels[update.gradients["bias"][labels] > 0]
    assert len(hidden) > 0
    found = unsum.separate(head, update).targets.argmax(1).tolist()
    assert set(hidden.tolist()) <= set(found)


def test_a_scaled_gradient_gives_no_first_counts() -> None:
    """Exchanges assume a mean over the batch; what contradicts that is left to the other starts and
    never claimed."""
    head, features, labels = trained_case(seed=1)
    update = unsum.capture(head, features, labels)
    larger = unsum.Update({name: 7 * value for name, value in update.gradients.items()})
    assert unsum.separate(head, update).exact
    leak = unsum.separate(head, larger)
    assert not leak.exact or unsum.score(leak, features=features)["worst_feature_error"] < 1e-2
