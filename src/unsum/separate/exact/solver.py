"""The exact solver: Y = softmax(T K + b) − (U T⁻¹)ᵀ/α, solved for T with nothing given.

Labels first: a regression over classes finds which rows of the gradient are labels and how many
samples carry each. Then Levenberg–Marquardt solves for the B² numbers T; features, logits and
targets follow in closed form.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from unsum.certify.claim import nothing
from unsum.certify.judge import judge
from unsum.certify.question import Question
from unsum.equation.noise import Noise, without_decay
from unsum.equation.observation import observe
from unsum.equation.threads import few_threads
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.exact.search import Search
from unsum.separate.method import working_type


def exact(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Separate a batch under cross-entropy; `predicted_error` and `exact` say how far to trust
    it."""
    low, high = torch.aminmax(head.grad_W)
    if float(low) == float(high) == 0:
        return nothing_found(
            head, knowledge, "The gradient is zero: it says nothing about the batch."
        )
    try:
        undecayed = without_decay(head)
        if undecayed is None:
            return _separated(head, knowledge, seed, None)
        clean, decay, noise = undecayed
        leak = _separated(clean, knowledge, seed, noise)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # Sizes beyond what float64 can square, or rows that are all alike.
        return nothing_found(
            head, knowledge, "The gradient's numbers leave the solver nothing that it can invert."
        )
    note = (
        f"The client decayed its weights by {decay:.3g} times themselves; that was taken off first."
    )
    return replace(leak, notes=[*leak.notes, note])


def _separated(head: Head, knowledge: Knowledge, seed: int, noise: Noise | None) -> Leak:
    observation = observe(head, knowledge.known_batch_size, noise)
    if observation.rank == 0:
        return nothing_found(head, knowledge, "Nothing in the gradient stands out of its noise.")
    with few_threads(observation.U.numel()):
        search = Search.over(
            observation, knowledge.targets(head.classes), knowledge.known_batch_size, seed
        )
        candidate = search.best()
    if candidate is None:
        return nothing_found(head, knowledge, "No start of the solver led to finite features.")
    return leak_of(Question(head, observation, candidate, knowledge))


def leak_of(question: Question) -> Leak:
    """The answer in the attacker's own order."""
    head, observation, candidate = question.head, question.observation, question.candidate
    (claim, T), at = judge(question), candidate.at
    G = observation.loss.gradient(at.T @ observation.K + observation.b, candidate.Y)
    return Leak(
        method="exact",
        targets=candidate.Y,
        logits=T @ observation.K + observation.b,
        features=(T @ observation.A).to(working_type(head)),
        residual=float((at.alpha * G.T @ at.T - observation.U).norm() / observation.U.norm()),
        predicted_error=claim.predicted_error,
        errors=candidate.merged()[1],
        exact=claim.exact,
        predicts=claim.predicts,
        counted=claim.counted,
        scale=question.scale,
        notes=claim.notes,
        loss=observation.loss.name,
    )


def nothing_found(
    head: Head, knowledge: Knowledge, reason: str, loss: str = "cross-entropy"
) -> Leak:
    """The empty-handed answer: right shapes, no information, no claim."""
    B, (C, H) = knowledge.known_batch_size or 1, head.W.shape
    granted, claim = knowledge.targets(C), nothing(reason)
    targets = (
        head.W.new_full((B, C), 1 / C, dtype=torch.float64)
        if granted is None
        else granted.to(head.W.device)
    )
    return Leak(
        method="exact",
        targets=targets,
        logits=targets.new_zeros(B, C),
        features=head.W.new_zeros(B, H),
        residual=1.0,
        predicted_error=claim.predicted_error,
        exact=claim.exact,
        predicts=claim.predicts,
        counted=claim.counted,
        notes=claim.notes,
        loss=loss,
    )
