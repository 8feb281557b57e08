"""Targets that were softer than they were taken for: where the softmax is at its end, it does not bend.

Without a bend any mixture of the features explains the gradient as well as they do: α (P − Y)ᵀ F has the same rows for
hard labels and for soft ones with other features. It is tried with labels that are smoothed a little.
"""

from __future__ import annotations

from dataclasses import replace

from unsum.certify.candidate import reweighted
from unsum.certify.question import Question

_SATURATED = 5e-2  # what the softmax leaves to other classes, at most, where it is at its end
_TRUSTED_SMOOTHING = 1e-3  # deviation of a smoothed label's largest entry that is sure enough
_SMOOTHED = 2e-2  # smoothing that is tried there


def doubt_smoothing(question: Question) -> list[str]:
    """The doubt about how strongly labels were smoothed, where another strength at another scale sends the same."""
    candidate = question.candidate
    deviation = (question.observation.classes - 1) * candidate.certificate.floor_deviation
    if candidate.equation.alpha_free:  # a label that is smoothed more, at a larger scale, sends the same
        deviation = max(deviation, 0.1 * candidate.certificate.log_alpha_deviation)
    if not candidate.equation.floor_free or not candidate.explains or deviation < _TRUSTED_SMOOTHING:
        return []
    return [f"Labels may be smoothed by {100 * min(deviation, 1.0):.2g} % more or less: it would hardly show."]


def doubt_labels(question: Question) -> list[str]:
    """The doubt that labels were smoothed or mixed, where the model is certain of one class for every sample."""
    observation, candidate = question.observation, question.candidate
    if question.knowledge.labels is not None or not candidate.explains or observation.loss.name != "cross-entropy":
        return []
    P = candidate.equation.probabilities(candidate.at.T)
    if float((1 - P.amax(1)).max()) > _SATURATED:
        return []
    if candidate.equation.Y is not None:
        other = replace(candidate.at, floor=candidate.at.floor + _SMOOTHED / candidate.equation.classes)
        fixed = replace(candidate.equation, floor_free=False)
        if reweighted(observation, fixed, other).certificate.misfit > 2 * question.misfit:
            return []
    return ["The model answers every sample found with one class for certain: mixed labels would look the same here."]
