"""Doubts that measure instead of assuming the worst: how far labels are mixed, and what rounding
leaves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.certify.doubts.mixing import doubt_mixing, hidden_mixing
from unsum.certify.question import Question
from unsum.equation.observation import observe
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.separate.exact.search import Search

H, C = 64, 30


def batch(samples: int, seed: int = 0) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(seed)
    features = (torch.randn(H) + 0.3 * torch.randn(samples, H)).relu()
    return nn.Linear(H, C), features, nn.functional.one_hot(torch.arange(samples), C).float()


def asked(mixed: float) -> Question:
    """The answer with hard labels, for a gradient of labels of which the first two are mixed by so
    much."""
    model, features, hard = batch(4)
    targets = hard.clone()
    targets[:2] = (1 - mixed) * hard[:2] + mixed * hard[:2].flip(0)
    head = Head.of(model, unsum.capture(model, features, targets, defenses=unsum.Noise(1e-5)))
    observation = observe(head, 4)
    candidate = Search.over(observation, hard.double(), 4, 0).best()
    assert candidate is not None
    return Question(head, observation, candidate, Knowledge(batch_size=4))


def test_the_gradient_says_how_far_labels_are_mixed() -> None:
    """Told hard labels, the solver fits them; what is left of the gradient gives the mixture away,
    though it is hardly more."""
    hidden = hidden_mixing(asked(0.02))
    assert hidden is not None
    assert 0.018 < hidden[0] < 0.05
    assert sorted(hidden[1:]) == [0, 1]
    assert doubt_mixing(asked(0.02))


def test_hard_labels_are_measured_as_hard() -> None:
    hidden = hidden_mixing(asked(0.0))
    assert hidden is not None
    assert hidden[0] < 0.01
    assert doubt_mixing(asked(0.0)) == []


@pytest.mark.parametrize("seed", range(1, 4))
def test_rounding_is_largest_where_features_are_and_no_reason_to_doubt(seed: int) -> None:
    """A few large entries carry most of a row's rounding, so that a mean over the row is less than
    what the answer must leave."""
    torch.manual_seed(seed)
    model, features = nn.Linear(H, 10), torch.randn(1, H).relu().square()
    update = unsum.capture(model, features, torch.tensor([0]), defenses=unsum.BFloat16())
    leak = unsum.separate(model, update, batch_size=1)
    assert leak.exact
    assert float((leak.features - features).norm() / features.norm()) < 1e-3


def test_what_rounding_does_not_leave_is_doubted() -> None:
    model, features, targets = batch(1)
    update = unsum.capture(model, features, targets)
    bent = {
        name: g * (1 + 0.004 * torch.linspace(-1, 1, C)).view(-1, *[1] * (g.ndim - 1))
        for name, g in update.gradients.items()
    }
    coarse = unsum.Update({name: g.bfloat16() for name, g in bent.items()})
    assert not unsum.separate(model, coarse, batch_size=1).exact
    straight = unsum.Update({name: g.bfloat16() for name, g in update.gradients.items()})
    assert unsum.separate(model, straight, batch_size=1).exact
