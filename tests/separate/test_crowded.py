"""More samples than classes: no rank is left for them, their zeros separate them all the same."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import unsum
from support.head_cases import NOTHING, case, one_hot
from unsum.knowledge import Knowledge
from unsum.separate.crowded import code, crowded, on_support
from unsum.separate.fgla import fgla

C, B, H = 20, 26, 8000


def rectified(seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.relu(0.4 * torch.randn(H) + torch.randn(B, H) - 1.1) * 3


def matched_cosines(found: Tensor, truth: Tensor) -> Tensor:
    cosines = nn.functional.normalize(found, dim=1) @ nn.functional.normalize(truth, dim=1).T
    rows, columns = linear_sum_assignment(-cosines)
    return cosines[rows, columns]


@pytest.mark.parametrize("seed", [0, 1])
def test_most_samples_come_back(seed: int) -> None:
    features = rectified(seed)
    labels = torch.randint(C, (B,))
    truth = case(features, nn.Linear(H, C), one_hot(labels, C))
    leak = crowded(truth.head, Knowledge(labels=labels), seed=0)
    cosines = matched_cosines(leak.features, features)
    assert float(cosines.median()) > 0.98
    assert float((cosines > 0.9).float().mean()) > 0.75
    assert not leak.exact
    assert torch.equal(leak.targets.argmax(1), labels)
    by_ratio = fgla(truth.head, Knowledge(labels=labels), seed=0)
    assert float(matched_cosines(by_ratio.features, features).median()) < 0.9


def test_coding_finds_sparse_combinations() -> None:
    torch.manual_seed(0)
    atoms = nn.functional.normalize(torch.randn(26, 19, dtype=torch.float64), dim=1)
    truth = torch.relu(torch.randn(26, 500, dtype=torch.float64) - 1.2)
    X = atoms.T @ truth
    X = X[:, truth.sum(0) > 0]
    truth = truth[:, truth.sum(0) > 0]
    Z = on_support(
        atoms, X, code(atoms, X, torch.zeros_like(truth), torch.ones_like(truth), 800), 1e-3
    )
    right = (Z - truth).norm(dim=0) < 1e-6 * truth.norm(dim=0)
    assert float(right.double().mean()) > 0.9


def test_what_it_needs_is_said() -> None:
    truth = case(rectified(0), nn.Linear(H, C), one_hot(torch.randint(C, (B,)), C))
    with pytest.raises(unsum.UnsumError, match="needs the labels"):
        crowded(truth.head, NOTHING, seed=0)
    with pytest.raises(unsum.UnsumError, match="shared by a few"):
        crowded(truth.head, Knowledge(labels=torch.zeros(B, dtype=torch.long)), seed=0)
    with pytest.raises(unsum.UnsumError, match="needs the labels"):
        crowded(truth.head, Knowledge(labels=torch.full((B, C), 1 / C)), seed=0)


def test_a_gradient_that_was_pruned_away_is_refused() -> None:
    """Nothing of ∇W, or a few entries and no bias gradient: no NaN is an answer."""
    model, labels = nn.Linear(48, 2), torch.tensor([0, 1])
    sent = {"weight": torch.zeros(2, 48), "bias": torch.zeros(2)}
    with pytest.raises(unsum.UnsumError, match="that is not zero"):
        unsum.separate(model, unsum.Update(sent), "crowded", labels=labels)
    row = torch.linspace(-0.01, 0.02, 48) * (torch.arange(48) % 5 == 0)
    few = sent | {"weight": torch.stack([row, -row])}
    with pytest.raises(unsum.UnsumError, match="'crowded' divided by zero"):
        unsum.separate(model, unsum.Update(few), "crowded", labels=labels)
