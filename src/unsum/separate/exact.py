"""The exact solver: Y = softmax(T K + b) − (U T⁻¹)ᵀ/α, solved for T with nothing given.

Labels first: a regression over classes finds which rows of the gradient are labels and how many samples carry each.
Then Levenberg–Marquardt solves for the B² numbers T; features, logits and targets follow in closed form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.hypotheses import Candidate, best_candidate
from unsum.separate.method import SEPARATORS
from unsum.separate.observation import Observation, observe

_TRUSTED_ERROR = 1e-3  # certified exact below this predicted error


@SEPARATORS.register(
    "exact",
    summary="every sample's features, logits and targets, solved exactly (unsum)",
    needs="the last layer's gradient; fewer samples than classes",
)
def exact(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Separate the batch; `predicted_error` and `exact` say how far to trust it."""
    if not bool(head.grad_W.any()):
        return _nothing(head, knowledge, "The gradient is zero: it says nothing about the batch.")
    observation = observe(head, knowledge.known_batch_size)
    if observation.rank == 0:
        return _nothing(head, knowledge, "Nothing in the gradient stands out of its noise.")
    candidate = best_candidate(observation, knowledge.targets(head.classes), seed)
    if candidate is None:
        return _nothing(head, knowledge, "No start of the solver led to finite features.")
    return _leak(head, observation, candidate)


def _leak(head: Head, observation: Observation, candidate: Candidate) -> Leak:
    T, B = candidate.at.T, len(candidate.at.T)
    features = T @ observation.A
    logits = T @ observation.K + observation.b
    certificate = candidate.certificate
    sure = certificate.predicted_error < _TRUSTED_ERROR and candidate.explains and candidate.agreed
    dtype = head.W.dtype if head.W.dtype in (torch.float32, torch.float64) else torch.float32
    return Leak(
        method="exact",
        targets=candidate.Y,
        logits=logits,
        features=features.to(dtype),
        residual=_relative_residual(observation, candidate),
        predicted_error=certificate.predicted_error,
        exact=sure,
        scale=observation.scale(float(candidate.at.alpha), B),
        notes=_notes(observation, candidate, sure),
    )


def _relative_residual(observation: Observation, candidate: Candidate) -> float:
    """How much of ∇W the answer leaves unexplained, relative."""
    P = torch.softmax(candidate.at.T @ observation.K + observation.b, dim=1)
    explained = candidate.at.alpha * (P - candidate.Y).T @ candidate.at.T
    return float((explained - observation.U).norm() / observation.U.norm())


def _notes(observation: Observation, candidate: Candidate, sure: bool) -> list[str]:
    notes = []
    if observation.noise.added:
        notes.append(
            f"Noise of {100 * observation.noise.relative:.2g} % of the gradient was found in it "
            "(its columns do not sum to zero); features carry that noise."
        )
    if not candidate.explains:
        notes.append(
            f"The answer misses the gradient by {candidate.certificate.misfit:.1e} times its noise: "
            "it is the best of several starts, not a solution."
        )
    elif not sure:
        notes.append("The gradient's precision does not determine the features to 0.1 %.")
    floor = float(candidate.at.floor)
    if floor > 0:
        notes.append(f"Label smoothing of {floor * observation.classes:.4f} was found.")
    return notes


def _nothing(head: Head, knowledge: Knowledge, reason: str) -> Leak:
    """The empty-handed answer: right shapes, no information, no claim."""
    B, (C, H) = knowledge.known_batch_size or 1, head.W.shape
    granted = knowledge.targets(C)
    targets = head.W.new_full((B, C), 1 / C, dtype=torch.float64) if granted is None else granted.to(head.W.device)
    logits: Tensor = targets.new_zeros(B, C)
    return Leak(
        method="exact",
        targets=targets,
        logits=logits,
        features=head.W.new_zeros(B, H),
        residual=1.0,
        predicted_error=float("inf"),
        exact=False,
        notes=[reason],
    )
