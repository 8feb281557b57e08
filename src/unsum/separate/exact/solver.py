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
from unsum.separate.exact.candidate import Candidate
from unsum.separate.exact.hidden import doubt_assumed_scale, doubt_labels, doubt_number
from unsum.separate.exact.mixing import doubt_mixing, doubt_read_off
from unsum.separate.exact.observation import Observation, observe
from unsum.separate.exact.remarks import find_doubts, find_remarks
from unsum.separate.exact.search import Search
from unsum.separate.exact.threads import few_threads
from unsum.separate.method import SEPARATORS

_MEASURED = 3.0  # standard deviations of noise that was measured, which solutions leave at most
_TRUSTED_ERROR = 1e-3  # certified exact below this predicted error


@SEPARATORS.register(
    "exact",
    summary="every sample's features, logits and targets, solved exactly (unsum)",
    needs="the last layer's gradient; fewer samples than classes",
)
def exact(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Separate the batch; `predicted_error` and `exact` say how far to trust it."""
    low, high = torch.aminmax(head.grad_W)
    if float(low) == float(high) == 0:
        return _nothing(head, knowledge, "The gradient is zero: it says nothing about the batch.")
    try:
        return _solved(head, knowledge, seed)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # Sizes beyond what float64 can square, or rows that are all alike.
        return _nothing(head, knowledge, "The gradient's numbers leave the solver nothing that it can invert.")


def _solved(head: Head, knowledge: Knowledge, seed: int) -> Leak:
    observation = observe(head, knowledge.known_batch_size)
    if observation.rank == 0:
        return _nothing(head, knowledge, "Nothing in the gradient stands out of its noise.")
    with few_threads(observation.U.numel()):
        search = Search.over(observation, knowledge.targets(head.classes), knowledge.known_batch_size, seed)
        candidate = search.best()
    if candidate is None:
        return _nothing(head, knowledge, "No start of the solver led to finite features.")
    return _leak(head, knowledge, observation, candidate)


def _leak(head: Head, knowledge: Knowledge, observation: Observation, candidate: Candidate) -> Leak:
    T, B = candidate.at.T, len(candidate.at.T)
    groups, errors = candidate.merged()
    for group in groups:
        T = T.index_copy(0, T.new_tensor(group, dtype=torch.long), T[group].mean(0).expand(len(group), -1))
    scale = observation.scale(float(candidate.at.alpha), B)
    doubts = find_doubts(observation, candidate, groups, knowledge.known_batch_size)
    if knowledge.known_batch_size is None:
        doubts += doubt_number(head, observation, candidate)
    if knowledge.labels is None:
        doubts += (
            doubt_labels(observation, candidate) + doubt_mixing(candidate) + doubt_read_off(observation, candidate)
        )
    predicted = float(errors.max())
    if not doubts and predicted < _TRUSTED_ERROR:
        doubts += doubt_assumed_scale(observation, candidate)
    doubts += _doubt_misfit(observation, candidate, predicted)
    sure = not doubts and candidate.agreed and predicted < _TRUSTED_ERROR
    dtype = head.W.dtype if head.W.dtype in (torch.float32, torch.float64) else torch.float32
    return Leak(
        method="exact",
        targets=candidate.Y,
        logits=T @ observation.K + observation.b,
        features=(T @ observation.A).to(dtype),
        residual=_relative_residual(observation, candidate),
        predicted_error=predicted,
        exact=sure,
        scale=scale,
        notes=doubts + find_remarks(observation, candidate),
    )


def _doubt_misfit(observation: Observation, candidate: Candidate, predicted: float) -> list[str]:
    """A residual of several times the noise is no noise: it need not scatter, and may shift the answer by more than noise would.

    Among samples that resemble each other other labels at another scale may come that close; then features are vague as well.
    Noise that was added is measured, and not estimated on the safe side as rounding is: it leaves no room.
    """
    misfit = candidate.certificate.misfit
    if not candidate.explains or predicted >= _TRUSTED_ERROR:
        return []
    if predicted * misfit**2 < _TRUSTED_ERROR and not (observation.noise.added and misfit > _MEASURED):
        return []
    return [f"The answer misses the gradient by {misfit:.0f} times its noise: it may be farther off than predicted."]


def _relative_residual(observation: Observation, candidate: Candidate) -> float:
    """How much of ∇W the answer leaves unexplained, relative."""
    P = torch.softmax(candidate.at.T @ observation.K + observation.b, dim=1)
    explained = candidate.at.alpha * (P - candidate.Y).T @ candidate.at.T
    return float((explained - observation.U).norm() / observation.U.norm())


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
