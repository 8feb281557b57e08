"""What may hide behind one answer: samples of one label so alike that the gradient shows them as a single one.

Two samples f ± δ‖f‖u of equal label differ from two copies of f, to leading order, by α δ²‖f‖² (J W u) uᵀ in ∇W, with J the
derivative of softmax. That is quadratic in δ: features may differ far more than the precision before a second direction
rises above the noise. Nobody who is not told the batch size can exclude it.
"""

from __future__ import annotations

import torch

from unsum.head import Head
from unsum.separate.exact.candidate import Candidate
from unsum.separate.exact.observation import Observation
from unsum.separate.exact.rank import noise_threshold, rounding_threshold

_FEW = 2  # samples that may each hide another; that every one of more does, none being left out, is far-fetched
_TRUSTED_SPREAD = 1e-2


def doubt_number(head: Head, observation: Observation, candidate: Candidate) -> list[str]:
    """The doubt that there were more samples than were found.

    A sample that stands for two carries twice the weight of its neighbours and gives itself away. Only when all of them
    stand for equally many is nothing left to compare with: in practice, when one or two were found.
    """
    crowded = ((candidate.Y - candidate.at.floor) > _TRUSTED_SPREAD).sum(1).gt(2).nonzero()[:, 0].tolist()
    doubts = [
        f"Sample {i} carries several labels at once: it may be several samples with equal features." for i in crowded
    ]
    spread = hidden_spread(head, observation, candidate)
    if len(candidate.at.T) <= _FEW and spread > _TRUSTED_SPREAD:
        apart = f"that differ by less than {100 * spread:.2g} %" if spread < 1 else "however different"
        doubts.append(f"Samples of one label, {apart}, would look like one here: there may be more than were found.")
    return doubts


def hidden_spread(head: Head, observation: Observation, candidate: Candidate) -> float:
    """The largest relative δ at which two samples may pass as one, for directions u that are nothing special."""
    T, alpha = candidate.at.T, float(candidate.at.alpha)
    P = torch.softmax(T @ observation.K + observation.b, dim=1)
    H = observation.A.shape[1]
    size = T.square().sum(1, keepdim=True)  # ‖f‖²
    response = alpha * size * P * _row_spread(head, P.mean(0)) / H**0.5  # (B, C): |α ‖f‖² J W u| per class
    if observation.noise.added:
        visible = noise_threshold(head, observation.noise) / response.norm(dim=1)
    else:
        visible = (rounding_threshold(head, observation.noise) / response.clamp_min(1e-300)).amin(1)
    return float(visible.max().sqrt())


def _row_spread(head: Head, p: torch.Tensor) -> torch.Tensor:
    """(C,) ‖W_c − Σ_k p_k W_k‖ without a second matrix of W's size."""
    mean = p.to(head.W.dtype) @ head.W
    squares = torch.linalg.vector_norm(head.W, dim=1).square() - 2 * (head.W @ mean) + mean @ mean
    spread: torch.Tensor = squares.double().clamp_min(0).sqrt()
    return spread
