from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from material import pictures, small_net
from unsum import Knowledge, UnsumError, Update, capture, score, separate
from unsum.head import Head
from unsum.separate.method import SEPARATORS
from unsum.separate.rgla import _estimated_loss, rgla


def linear_case(labels: torch.Tensor, classes: int = 30) -> tuple[nn.Linear, torch.Tensor, Update]:
    """Features of a linear model are its inputs: the truth needs no hook."""
    torch.manual_seed(0)
    model, features = nn.Linear(64, classes), torch.randn(len(labels), 64).relu()
    return model, features, capture(model, features, labels)


def test_distinct_labels_converge_to_the_truth() -> None:
    labels = torch.tensor([2, 5, 11])
    model, features, update = linear_case(labels)
    early = rgla(Head.of(model, update), Knowledge(labels), seed=0, steps=500)
    late = rgla(Head.of(model, update), Knowledge(labels), seed=0, steps=6000)
    assert score(late, features=features)["feature_error"] < 1e-3
    assert late.residual < 0.1 * early.residual
    torch.testing.assert_close(late.logits.float(), model(features).detach(), rtol=0, atol=0.3)
    assert not late.exact


def test_labels_are_found_when_they_are_not_granted() -> None:
    model, _features, update = linear_case(torch.tensor([2, 5, 11]))
    leak = rgla(Head.of(model, update), Knowledge(), seed=0, steps=10)
    assert leak.labels.tolist() == [2, 5, 11]


def test_the_estimated_loss_is_the_loss_at_initialisation() -> None:
    """Proposition 2 is exact for one sample and close for a batch of an untrained model."""
    for labels, tolerance in [(torch.tensor([4]), 1e-4), (torch.tensor([4, 4, 9, 20]), 0.05)]:
        model, features, update = linear_case(labels)
        true = float(nn.functional.cross_entropy(model(features), labels).detach())
        assert math.isclose(float(_estimated_loss(update.gradients["bias"], labels)), true, rel_tol=tolerance)


def test_it_is_known_by_name_and_refuses_what_it_cannot_do() -> None:
    assert "rgla" in [entry.name for entry in SEPARATORS]
    net = small_net(bias=False)
    with pytest.raises(UnsumError, match="needs the head's bias"):
        separate(net, capture(net, pictures(2), torch.tensor([0, 1])), "rgla")
