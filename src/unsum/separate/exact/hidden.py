"""What may hide behind one answer: samples so alike, or so well predicted, that the gradient does not show them apart.

Two samples f ± δ‖f‖u of equal label differ from two copies of f, to leading order, by α δ²‖f‖² (J W u) uᵀ in ∇W, with J the
derivative of softmax. That is quadratic in δ: features may differ far more than the precision before a second direction
rises above the noise. Nobody who is not told the batch size can exclude it. More than two share that term among their own
directions, n of them among n − 1: each direction carries less of it, and δ may be √(n − 1) times as large.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from unsum.head import Head
from unsum.separate.exact.candidate import Candidate, reweighted
from unsum.separate.exact.certificate import certify
from unsum.separate.exact.equation import Linearized
from unsum.separate.exact.observation import Observation
from unsum.separate.exact.rank import noise_threshold, rounding_threshold
from unsum.separate.exact.remarks import name_some

_FEW = 2  # samples that may each hide another; that every one of more does, none being left out, is far-fetched
_TRUSTED_SPREAD = 1e-2
_SHARED = 3.0  # √(n − 1) for ten samples in the place of one
_PLAIN = 5e-2  # distance, in logarithms, of a gradient's scale from 1 within which it is taken for 1
_SATURATED = 5e-2  # what the softmax leaves to other classes, at most, where it is at its end
_SMOOTHED = 2e-2  # smoothing that is tried there
_COUNTED = 3e-5  # predicted error below which what is missing sends next to nothing
_RESOLVED = 1e6  # how much larger a change may be than the part of it that is new: float64 squares it
_SURE = 1e-2  # largest difference of prediction and target at which the softmax hardly tells the scale


def doubt_number(head: Head, observation: Observation, candidate: Candidate) -> list[str]:
    """The doubt that there were more samples than were found.

    A sample that stands for two carries twice the weight of its neighbors and gives itself away. Only when all of them
    stand for equally many is nothing left to compare with: in practice, when one or two were found.
    """
    crowded = ((candidate.Y - candidate.at.floor) > _TRUSTED_SPREAD).sum(1).gt(2).nonzero()[:, 0].tolist()
    doubts = []
    if crowded:
        several = f"Sample {name_some(crowded)} {'carries' if len(crowded) == 1 else 'carry'} several labels at once"
        doubts.append(f"{several}: each may be several samples with equal features.")
    doubts += _doubt_proportional(observation, candidate) + _doubt_scale(observation, candidate)
    doubts += _doubt_faint(observation, candidate)
    if len(candidate.at.T) > _FEW:
        return doubts
    spread = hidden_spread(head, observation, candidate)
    if spread > _TRUSTED_SPREAD:
        apart = f"that differ by less than {100 * spread:.2g} %" if spread < 1 else "however different"
        doubts.append(f"Samples of one label, {apart}, would look like one here: there may be more than were found.")
    return doubts


def _doubt_proportional(observation: Observation, candidate: Candidate) -> list[str]:
    """Two samples with proportional features and different labels pass for one with a mixed label, and it for them."""
    T, labels = candidate.at.T, candidate.Y.argmax(1)
    if len(T) <= observation.rank or observation.rank == observation.A.shape[1]:
        return []
    unit = T / T.norm(dim=1, keepdim=True).clamp_min(1e-300)
    alike = (unit @ unit.T > 1 - 1e-4) & (labels[:, None] != labels)
    named = ", ".join(map(str, alike.any(1).nonzero()[:, 0].tolist()))
    return [f"Samples {named} have proportional features: some may be one with a mixed label."] if named else []


def _doubt_scale(observation: Observation, candidate: Candidate) -> list[str]:
    """Where the model is sure of every sample found, one more that left no trace, and so another mean, may fit as well."""
    P = torch.softmax(candidate.at.T @ observation.K + observation.b, dim=1)
    sure, B = float((P - candidate.Y).abs().max()) < _SURE, len(candidate.at.T)
    if not sure or not candidate.explains:
        return []
    if candidate.equation.alpha_free and abs(math.log(observation.scale(float(candidate.at.alpha), B))) > _PLAIN:
        return [
            "The model would have to be so sure of every sample found that hardly anything tells the gradient's scale."
        ]
    if observation.reduction != "mean" or candidate.equation.alpha_free:
        return []
    other = replace(candidate.at, log_alpha=candidate.at.log_alpha + math.log(B / (B + 1)))
    misfit = reweighted(observation, candidate.equation, other).certificate.misfit
    if misfit > max(2 * candidate.certificate.misfit, 2.0):
        return []
    return ["The model is so sure of every sample that one without a trace may be missing, and sizes be off with it."]


def _doubt_faint(observation: Observation, candidate: Candidate) -> list[str]:
    """Only a plain mean counts its samples; else others make up for one that sends no more than they are sure of."""
    counted = observation.reduction == "mean" and not candidate.equation.alpha_free
    error = candidate.certificate.predicted_error
    if counted or candidate.read_off or not candidate.explains or error < _COUNTED:
        return []
    return [f"A sample that sends {100 * error:.1g} % of the gradient may be missing: others would make up for it."]


def doubt_labels(observation: Observation, candidate: Candidate) -> list[str]:
    """The doubt that labels were smoothed or mixed: where the softmax is at its end for every sample, it does not bend.

    Without a bend any mixture of the features explains the gradient as well as they do: α (P − Y)ᵀ F has the same rows for
    hard labels and for soft ones with other features. It is tried with labels that are smoothed a little.
    """
    P = torch.softmax(candidate.at.T @ observation.K + observation.b, dim=1)
    if not candidate.explains or float((1 - P.amax(1)).max()) > _SATURATED:
        return []
    if candidate.equation.Y is not None:
        other = replace(candidate.at, floor=candidate.at.floor + _SMOOTHED / observation.classes)
        fixed = replace(candidate.equation, floor_free=False)
        if reweighted(observation, fixed, other).certificate.misfit > max(2 * candidate.certificate.misfit, 2.0):
            return []
    return ["The model answers every sample found with one class for certain: mixed labels would look the same here."]


def doubt_assumed_scale(observation: Observation, candidate: Candidate) -> list[str]:
    """The doubt that the gradient was scaled: where the softmax hardly bends, nothing tells a scale of 1 from another one."""
    equation = candidate.equation
    if equation.alpha_free or candidate.read_off or not candidate.explains:
        return []
    equation = replace(equation, alpha_free=True)
    free = certify(equation, candidate.at, observation)
    change = float(Linearized(equation, candidate.at).alpha_derivative().norm())
    # Of what the scale changes, T makes up for all but a part: one that rounding of the normal matrix leaves is none.
    if free.predicted_error < _TRUSTED_SPREAD and change * free.log_alpha_deviation < _RESOLVED:
        return []
    return [
        "The gradient's scale is taken for 1, and nothing tells: at another one features and labels would be others."
    ]


def hidden_spread(head: Head, observation: Observation, candidate: Candidate) -> float:
    """The largest relative δ at which a few samples may pass as one, for directions u that are nothing special."""
    T, alpha = candidate.at.T, float(candidate.at.alpha)
    P = torch.softmax(T @ observation.K + observation.b, dim=1)
    H = observation.A.shape[1]
    size = T.square().sum(1, keepdim=True)  # ‖f‖²
    response = alpha * size * P * _row_spread(head, P.mean(0)) / H**0.5  # (B, C): |α ‖f‖² J W u| per class
    if observation.noise.added:
        visible = noise_threshold(head, observation.noise) / response.norm(dim=1)
    else:
        visible = (rounding_threshold(head, observation.noise) / response.clamp_min(1e-300)).amin(1)
    return _SHARED * float(visible.max().sqrt())


def _row_spread(head: Head, p: torch.Tensor) -> torch.Tensor:
    """(C,) ‖W_c − Σ_k p_k W_k‖ without a second matrix of W's size."""
    mean = p.to(head.W.dtype) @ head.W
    squares = torch.linalg.vector_norm(head.W, dim=1).square() - 2 * (head.W @ mean) + mean @ mean
    spread: torch.Tensor = squares.double().clamp_min(0).sqrt()
    return spread
