"""From a candidate to a `Leak`: features, logits and targets with the claim that the certificate allows."""

from __future__ import annotations

import torch

from unsum.certify.claim import nothing
from unsum.certify.judge import judge
from unsum.certify.question import Question
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak


def leak_of(question: Question) -> Leak:
    """The answer in the attacker's own order."""
    head, observation, candidate = question.head, question.observation, question.candidate
    judgment = judge(question)
    dtype = head.W.dtype if head.W.dtype in (torch.float32, torch.float64) else torch.float32
    return Leak(
        method="exact",
        targets=candidate.Y,
        logits=judgment.T @ observation.K + observation.b,
        features=(judgment.T @ observation.A).to(dtype),
        residual=_relative_residual(question),
        predicted_error=judgment.claim.predicted_error,
        exact=judgment.claim.exact,
        scale=question.scale,
        notes=judgment.claim.notes,
        loss=observation.loss.name,
    )


def nothing_found(head: Head, knowledge: Knowledge, reason: str, loss: str = "cross-entropy") -> Leak:
    """The empty-handed answer: right shapes, no information, no claim."""
    B, (C, H) = knowledge.known_batch_size or 1, head.W.shape
    granted, claim = knowledge.targets(C), nothing(reason)
    targets = head.W.new_full((B, C), 1 / C, dtype=torch.float64) if granted is None else granted.to(head.W.device)
    return Leak(
        method="exact",
        targets=targets,
        logits=targets.new_zeros(B, C),
        features=head.W.new_zeros(B, H),
        residual=1.0,
        predicted_error=claim.predicted_error,
        exact=claim.exact,
        notes=claim.notes,
        loss=loss,
    )


def _relative_residual(question: Question) -> float:
    """How much of ∇W the answer leaves unexplained, relative."""
    at, observation, candidate = question.candidate.at, question.observation, question.candidate
    G = observation.loss.gradient(at.T @ observation.K + observation.b, candidate.Y)
    explained = at.alpha * G.T @ at.T
    return float((explained - observation.U).norm() / observation.U.norm())
