"""Two classes, or one logit, do not tell a smoothed label from a hard one at another scale."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.spans.targets import read_targets


def sent(
    smoothing: float, trained: int, scale: float = 1.0
) -> tuple[nn.Sequential, unsum.Update, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 2)
    )
    x, y = torch.rand(1, 20), torch.tensor([0])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(trained):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.zero_grad()
    (scale * nn.functional.cross_entropy(model(x), y, label_smoothing=smoothing)).backward()
    return (
        model,
        unsum.Update(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        ),
        x,
    )


@pytest.mark.parametrize("trained", [0, 20])
def test_a_smoothed_label_of_two_classes_is_not_claimed_as_a_hard_one(trained: int) -> None:
    """Who is surer than the smoothed label sends what the other class would send, and less of
    it."""
    model, update, _ = sent(0.1, trained)
    leak = unsum.separate(model, update, "spans", batch_size=1)
    assert not leak.exact
    assert any("Smoothed labels at another scale" in note for note in leak.notes)


def test_a_hard_label_of_two_classes_is_claimed_at_the_plain_scale_and_at_no_other() -> None:
    model, update, x = sent(0.0, 0)
    leak = unsum.separate(model, update, "spans", batch_size=1)
    assert leak.exact
    assert leak.labels.tolist() == [0]
    assert float((next(iter(leak.inner.values())) - x).norm() / x.norm()) < 1e-4
    model, update, _ = sent(0.0, 0, scale=0.8)
    assert not unsum.separate(model, update, "spans", batch_size=1).exact


def test_weights_of_their_own_do_not_hide_that_labels_were_smoothed() -> None:
    """Of two classes each sample fits any label at a weight of its own; flat logits make these
    weights nearly equal."""
    torch.manual_seed(0)
    logits = 0.02 * torch.randn(6, 2, dtype=torch.float64)
    hard = torch.eye(2, dtype=torch.float64)[[0, 1, 0, 1, 1, 0]]
    soft = 0.89 * hard + 0.11 / 2
    assert read_targets((logits.softmax(1) - soft) / 6, logits, None, False, "mean").smoothing_open
    assert not read_targets(
        (logits.softmax(1) - hard) / 6, logits, None, False, "mean"
    ).smoothing_open
