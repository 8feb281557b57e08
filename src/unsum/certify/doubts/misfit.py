"""The answer does not explain the gradient, or leaves more of it than its noise."""

from __future__ import annotations

import torch

from unsum.certify.claim import TRUSTED_ERROR
from unsum.certify.question import Question
from unsum.equation.noise import is_coarse, rounding_of_an_entry

MEASURED = 3.0  # standard deviations of noise that was measured, which solutions leave at most


def doubt_explanation(question: Question) -> list[str]:
    """The doubt that the answer is no solution at all, or a part of one."""
    candidate, rank = question.candidate, question.observation.rank
    B, misfit = len(candidate.at.T), candidate.certificate.misfit
    if not candidate.rounded:
        return ["The best start explains the gradient only with targets that are neither 0 nor 1."]
    if not candidate.plausible:
        return ["The targets that fit best are no probabilities: this is not a solution."]
    if candidate.verified and candidate.explains and rank > B:
        return [
            f"{B} samples are given, and they explain the gradient, but it has {rank} directions: "
            f"{rank - B} more may be in it that left hardly a trace."
        ]
    if candidate.verified:
        return [
            f"{B} samples of about {rank} are given: each fits the gradient on its own, "
            "but together they do not explain it, so some are missing or wrong."
        ]
    if candidate.explains:
        return []
    doubts = [
        (
            f"The answer misses the gradient by {misfit:.1e} times its noise: it is the best of "
            "several starts, not a solution."
        )
    ]
    if question.observation.classes - 1 <= B:
        doubts.append(
            "A batch of about as many samples as classes or more leaves too few equations."
        )
    return doubts


def doubt_misfit(question: Question, predicted: float) -> list[str]:
    """A residual of several times the noise is no noise: it need not scatter, and may shift the
    answer by more than noise would.

    Among samples that resemble each other other labels at another scale may come that close; then
    features are vague as well. Noise that was added is measured, and not estimated on the safe side
    as rounding is: it leaves no room.
    """
    misfit = question.candidate.certificate.misfit
    if not question.candidate.explains or predicted >= TRUSTED_ERROR:
        return []
    unexplained = misfit / _left_by_rounding(question)
    if predicted * unexplained**2 < TRUSTED_ERROR and not (
        question.observation.noise.added and misfit > MEASURED
    ):
        return []
    return [
        (
            f"The answer misses the gradient by {misfit:.0f} times its noise: it may be farther "
            "off than predicted."
        )
    ]


def _left_by_rounding(question: Question) -> float:
    """The misfit that one rounding to fewer digits leaves of the truth; 1 where that is not all
    that happened.

    The noise of a row is a mean over its entries. But an entry's rounding is a share of that entry,
    and entries are large where features are, which is where A looks: the few large ones count most.
    """
    head, observation = question.head, question.observation
    if observation.noise.added or not is_coarse(head) or head.sent_W is not None:
        return 1.0
    looked_at = observation.A.square().mean(0)  # (H,), in the mean over directions
    squares = torch.cat(
        [head.grad_W[rows].double().square() @ looked_at for rows in head.row_blocks()]
    )
    weight = question.candidate.equation.weight
    left = rounding_of_an_entry(head) * (squares * weight.square()).mean().sqrt()
    return max(1.0, float(left.nan_to_num(nan=1.0)))
