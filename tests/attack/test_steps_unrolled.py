"""Where several steps are declared, rows that take them for one never stand before an answer that
unrolls them and explains the movement."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.long import long
from unsum.attack import rows
from unsum.attack.case import Case
from unsum.attack.options import AttackOptions
from unsum.leak import Leak
from unsum.local_training import LocalTraining
from unsum.running.progress import SILENT

TWO_OF_FOUR = LocalTraining(0.1, 2, batch_size=4)


def client(seed: int) -> tuple[nn.Module, unsum.Update, Tensor]:
    """Two steps of 4 samples."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(192, 128), nn.ReLU()),
        *(nn.Linear(128, 64), nn.ReLU()),
        nn.Linear(64, 10),
    )
    x, y = torch.rand(8, 3, 8, 8), torch.randint(10, (8,))
    update = unsum.capture_local(net, x, y, learning_rate=0.1, local_steps=2, training_known=True)
    return net, replace(update, training=TWO_OF_FOUR), x


def answer(method: str, predicted: float, residual: float) -> Leak:
    targets = torch.eye(10)[:8].double()
    return Leak(method, targets, targets, torch.zeros(8, 64), residual, predicted, False)


@pytest.mark.parametrize(
    ("by", "before", "residual", "wins"),
    [
        ("adaptive", 0.27, 2e-6, True),
        ("exact", 1e-9, 2e-6, True),  # whatever it predicts, it takes two steps for one
        ("adaptive", 0.27, 0.5, False),  # the movement is not explained
        ("local-steps", 1e-9, 2e-6, False),  # follows the steps, too, and is surer
        ("local-steps", 1e-2, 2e-6, True),
    ],
)
def test_an_unrolled_answer_wins_over_one_that_takes_the_steps_for_one(
    by: str, before: float, residual: float, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, update, _ = client(0)
    case = Case(net, update, AttackOptions(), SILENT, answer(by, before, 1e-2), by)
    unrolled = answer("spans", 7e-6, residual)
    monkeypatch.setattr(Case, "read_below", lambda _case, _method: unrolled)
    assert rows._better_spans(case) is (unrolled if wins else None)
    told_one = replace(update, training=replace(TWO_OF_FOUR, steps=1))
    assert rows._better_spans(replace(case, update=told_one)) is None


@pytest.mark.parametrize("seed", long(*range(3)))
def test_both_steps_samples_are_given(seed: int) -> None:
    net, update, x = client(seed)
    leak = unsum.attack(net, update, inverse=None)
    assert leak.inputs is not None
    apart = torch.cdist(x.flatten(1).double(), leak.inputs.flatten(1).double()).amin(1)
    assert float((apart / x.flatten(1).double().norm(dim=1)).max()) < 1e-5
