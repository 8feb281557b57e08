"""The exact solver's start from features that are zero: batches of as many samples as the gradient
has directions."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from support.head_cases import NOTHING, PLAIN, Case, assert_exact, case, feature_error, one_hot
from unsum.equation.noise import Noise
from unsum.equation.observation import Observation, observe
from unsum.knowledge import Knowledge
from unsum.separate.exact import exact
from unsum.separate.exact.zeros import (
    Lengths,
    SparseDirections,
    certified,
    find_sparse_directions,
    measure_lengths,
    sharpen,
)

C, H = 24, 2500


def rectified(B: int, seed: int = 0, *, threshold: float = 0.7) -> Tensor:
    """Features after a ReLU: correlated between samples, and about three of four of them zero."""
    torch.manual_seed(seed)
    return torch.relu(0.4 * torch.randn(H) + torch.randn(B, H) - threshold) * 3


def crowded_case(labels: str, B: int, *, bias: bool = True, scale: float = 1.0) -> Case:
    features = rectified(B)
    wanted = {
        "same": torch.full((B,), 5),
        "random": torch.randint(C, (B,)),
        "distinct": torch.arange(B) % C,
    }
    if labels == "mixed":
        share = torch.rand(B, 1, dtype=torch.float64) * 0.6 + 0.2
        targets = share * one_hot(torch.randint(C, (B,)), C) + (1 - share) * one_hot(
            torch.randint(C, (B,)), C
        )
    else:
        targets = one_hot(wanted[labels], C)
    return case(features, nn.Linear(H, C, bias=bias), targets, scale=scale)


@pytest.mark.parametrize("labels", ["same", "random", "distinct", "mixed"])
@pytest.mark.parametrize("B", [20, 23])
def test_as_many_samples_as_directions(B: int, labels: str) -> None:
    truth = crowded_case(labels, B)
    told = (
        Knowledge(batch_size=B) if B == C - 1 else NOTHING
    )  # where samples take all directions, others could not show
    leak = exact(truth.head, told, seed=0)
    assert_exact(leak, truth, features=2e-4, targets=2e-4)


def test_without_a_bias_and_clipped() -> None:
    truth = crowded_case("same", 22, bias=False, scale=0.03)
    leak = exact(
        truth.head, dataclasses.replace(PLAIN, batch_size=22), seed=0
    )  # one of eight copies might be 1.4 % shorter
    assert leak.exact, leak.notes
    assert leak.scale == pytest.approx(0.03, rel=1e-3)
    assert_exact(leak, truth, features=2e-4, targets=2e-4)


def test_the_prediction_is_of_the_errors_size() -> None:
    for seed in range(3):
        features = rectified(22, seed)
        truth = case(features, nn.Linear(H, C), one_hot(torch.randint(C, (22,)), C))
        leak = exact(truth.head, NOTHING, seed=0)
        worst = feature_error(leak, truth)
        assert worst < 5 * leak.predicted_error < 500 * worst


@pytest.mark.parametrize(
    "make", [torch.randn, lambda *shape: nn.functional.softplus(torch.randn(*shape)), torch.rand]
)
def test_features_without_zeros_have_no_sparse_directions(make: object) -> None:
    torch.manual_seed(0)
    features = make(12, H).double()  # type: ignore[operator]
    A = torch.linalg.qr(features.T).Q.T
    assert find_sparse_directions(A, torch.Generator().manual_seed(0)) is None


def test_a_direction_that_is_no_sample_is_not_sharpened_into_one() -> None:
    F = rectified(12).double()
    A = torch.linalg.qr(F.T).Q.T * H**0.5
    T = torch.nn.functional.normalize(F @ A.T, dim=1)
    sharp = sharpen(T[0] + 0.1 * T[1:].mean(0), A)
    assert sharp is not None
    assert float(sharp[0] @ T[0]) > 1 - 1e-9
    assert sharpen(-T[0], A) is None  # its features would be negative


def test_zeros_alone_prove_nothing() -> None:
    """Sparse directions of a gradient that no softmax made: found, but not vouched for."""
    truth = crowded_case("random", 22)
    G = torch.randn(22, C)
    G = G - G.mean(1, keepdim=True)
    forged = dataclasses.replace(truth.head, grad_W=G.T @ truth.features / 22, grad_b=G.mean(0))
    observation = observe(forged, None)
    directions = find_sparse_directions(observation.A, torch.Generator().manual_seed(0))
    assert directions is not None
    lengths = measure_lengths(observation, directions)
    assert lengths is None or not certified(observation, directions, lengths).explains


@pytest.mark.parametrize(("classes", "known"), [(2, False), (3, True)])
def test_two_classes_leave_no_equation_that_could_contradict(classes: int, known: bool) -> None:
    """A loss that is not softmax's may send two directions from two classes: 1 · 2 equations for
    two lengths."""
    n, two = 400, torch.eye(2, dtype=torch.float64)
    A = torch.zeros(2, n, dtype=torch.float64)
    A[0, : n // 2] = A[1, n // 2 :] = (2 / n) ** 0.5
    b, level = (
        torch.zeros(classes, dtype=torch.float64),
        torch.full((classes,), 1e-9, dtype=torch.float64),
    )
    T, alpha = 3 * two, 0.5
    K = torch.randn(2, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    E = torch.softmax(T @ K, dim=1) - one_hot(torch.tensor([0, 1]), classes)
    U = alpha * E.T @ T
    noise = Noise(level, added=False, relative=0.0)
    observation = Observation(
        U, A, K, b, None, noise, torch.ones_like(b), 1.0, "mean", U.norm(dim=1), 1e-9
    )
    lengths = Lengths(T, U.T, torch.full((2,), alpha, dtype=torch.float64))
    found = certified(
        observation, SparseDirections(two, torch.zeros(2, dtype=torch.float64)), lengths
    )
    assert found.certificate.errors.isfinite().tolist() == [known] * 2
    assert found.certificate.misfit < 1
