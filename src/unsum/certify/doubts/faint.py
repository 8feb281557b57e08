"""Samples that the model predicts so well that they leave no trace, and answers that only such
samples hold."""

from __future__ import annotations

import math
from dataclasses import replace

from unsum.certify.candidate import reweighted, runaways
from unsum.certify.question import Question, name_some

PLAIN = 5e-2  # distance, in logarithms, of a gradient's scale from 1 within which it is taken for 1
COUNTED = 3e-5  # predicted error below which what is missing sends next to nothing
SURE = 1e-2  # largest difference of prediction and target at which the loss hardly tells the scale


def doubt_runaways(question: Question) -> list[str]:
    """The doubt about samples that came out where nothing holds them."""
    away = runaways(question.observation, question.candidate.at.T).nonzero()[:, 0].tolist()
    return (
        [f"Sample {name_some(away)} came out far longer than the others, as false ones do."]
        if away
        else []
    )


def doubt_faint(question: Question) -> list[str]:
    """Only a plain mean counts its samples; else others make up for one that sends no more than
    they are sure of."""
    candidate = question.candidate
    if question.each_is_one:
        return []
    doubts = _doubt_sure(question)
    counted = question.observation.reduction == "mean" and not candidate.equation.alpha_free
    error = candidate.certificate.predicted_error
    if not counted and not candidate.read_off and error >= COUNTED:
        doubts.append(
            f"A sample that sends {100 * error:.1g} % of the gradient may be missing: others would "
            "make up for it."
        )
    return doubts


def _doubt_sure(question: Question) -> list[str]:
    """Where the model is sure of every sample found, one more that left no trace, and so another
    mean, may fit as well."""
    observation, candidate, B = (
        question.observation,
        question.candidate,
        len(question.candidate.at.T),
    )
    if float(question.here.G.abs().max()) >= SURE:
        return []
    if candidate.equation.alpha_free and abs(math.log(question.scale)) > PLAIN:
        return [
            (
                "The model would have to be so sure of every sample found that hardly anything "
                "tells the gradient's scale."
            )
        ]
    if observation.reduction != "mean" or candidate.equation.alpha_free:
        return []
    other = replace(candidate.at, log_alpha=candidate.at.log_alpha + math.log(B / (B + 1)))
    if reweighted(observation, candidate.equation, other).certificate.misfit > 2 * question.misfit:
        return []
    return [
        (
            "The model is so sure of every sample that one without a trace may be missing, and "
            "sizes be off with it."
        )
    ]
