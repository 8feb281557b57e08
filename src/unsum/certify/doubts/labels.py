"""Targets that were softer than they were taken for: where the softmax is at its end, it does not
bend.

Without a bend any mixture of the features explains the gradient as well as they do: α (P − Y)ᵀ F
has the same rows for hard labels and for soft ones with other features. It is tried with labels
that are smoothed a little.
"""

from __future__ import annotations

from dataclasses import replace

from unsum.certify.candidate import reweighted
from unsum.certify.question import Question
from unsum.certify.scatter import certify

SATURATED = 5e-2  # what the softmax leaves to other classes, at most, where it is at its end
_TRUSTED_SMOOTHING = 1e-3  # deviation of a smoothed label's largest entry that is sure enough
_SMOOTHED = 2e-2  # smoothing that is tried there


def doubt_smoothing(question: Question) -> list[str]:
    """The doubt about how strongly labels were smoothed, where another strength at another scale
    sends the same."""
    candidate = question.candidate
    if not candidate.equation.floor_free:
        return []
    # A label that is smoothed more, at a larger scale, sends the same; a scale that came out as 1
    # may be a coincidence.
    free = certify(replace(candidate.equation, alpha_free=True), candidate.at, question.observation)
    deviation = max(
        (question.observation.classes - 1) * free.floor_deviation, 0.1 * free.log_alpha_deviation
    )
    if deviation < _TRUSTED_SMOOTHING:
        return []
    return [
        (
            f"Labels may be smoothed by {100 * min(deviation, 1.0):.2g} % more or less: it would "
            "hardly show."
        )
    ]


def doubt_class_weights(question: Question) -> list[str]:
    """The doubt about soft labels at a scale of their own: a loss with class weights w sends α (p −
    y), y ∝ w ∘ its own targets.

    Samples of several hard or smoothed labels would weigh differently then; one label alone, or
    free targets, show nothing.
    """
    equation = question.candidate.equation
    if question.knowledge.labels is not None or not equation.alpha_free:
        return []
    if equation.Y is not None and not (
        equation.floor_free and len(set(equation.Y.argmax(1).tolist())) == 1
    ):
        return []
    return [
        (
            "Labels came out soft at another scale: class weights of the loss would do both, with "
            "other labels."
        )
    ]


def doubt_labels(question: Question) -> list[str]:
    """The doubt that labels were smoothed or mixed, where the model is certain of one class for
    every sample."""
    observation, candidate = question.observation, question.candidate
    if question.knowledge.labels is not None or observation.loss.name != "cross-entropy":
        return []
    P = candidate.equation.probabilities(candidate.at.T)
    if float((1 - P.amax(1)).max()) > SATURATED:
        return []
    if candidate.equation.Y is not None:
        other = replace(
            candidate.at, floor=candidate.at.floor + _SMOOTHED / candidate.equation.classes
        )
        fixed = replace(candidate.equation, floor_free=False)
        if reweighted(observation, fixed, other).certificate.misfit > 2 * question.misfit:
            return []
    return [
        (
            "The model answers every sample found with one class for certain: mixed labels would "
            "look the same here."
        )
    ]
