"""From a question about the head's answer to the claim: every doubt is asked, and the evidence goes
to `claim`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unsum.certify.claim import TRUSTED_ERROR, Claim, Evidence, grant
from unsum.certify.counted import count
from unsum.certify.doubts.faint import doubt_faint, doubt_runaways
from unsum.certify.doubts.labels import doubt_class_weights, doubt_labels, doubt_smoothing
from unsum.certify.doubts.merged import doubt_groups, doubt_merged
from unsum.certify.doubts.mirror import doubt_mirror
from unsum.certify.doubts.misfit import doubt_explanation, doubt_misfit
from unsum.certify.doubts.mixing import doubt_mixing, doubt_read_off
from unsum.certify.doubts.nuisance import doubt_nuisance
from unsum.certify.doubts.number import doubt_number
from unsum.certify.question import Question, name_some
from unsum.equation.noise import is_rounding_of_weights

_QUICK = (doubt_explanation, doubt_runaways, doubt_number, doubt_merged)
_EXPLAINED = (
    doubt_faint,
    doubt_labels,
    doubt_smoothing,
    doubt_class_weights,
    doubt_read_off,
)  # of what explains the gradient
_SLOW = (
    doubt_mixing,
    doubt_nuisance,
    doubt_mirror,
)  # only while nobody has doubted; `doubt_explanation` is the first to


def judge(question: Question) -> tuple[Claim, Tensor]:
    """What may be claimed about the candidate, with a note for each reason why not more.

    And T (B, R) with the mean in the place of samples that cannot be told apart.
    """
    candidate = question.candidate
    groups, errors = candidate.merged()
    T = candidate.at.T
    for group in groups:
        T = T.index_copy(
            0, T.new_tensor(group, dtype=torch.long), T[group].mean(0).expand(len(group), -1)
        )
    predicted = float(errors.max())
    asked = (*_QUICK, *_EXPLAINED) if candidate.explains else _QUICK
    doubts = [*doubt_groups(groups), *(said for doubt in asked for said in doubt(question))]
    doubts += doubt_misfit(question, predicted)
    if not doubts and predicted < TRUSTED_ERROR:
        doubts = [said for doubt in _SLOW for said in doubt(question)]
    claim = grant(
        Evidence(
            errors,
            explained=candidate.explains,
            confirmations=candidate.confirmations,
            doubts=doubts,
            assumed=[f"The claim stands on the declared loss: {question.observation.loss.name}."]
            if question.knowledge.loss is not None
            else [],
            counted=count(T, candidate.Y.argmax(1), errors, question.knowledge),
        )
    )
    return replace(claim, notes=[*claim.notes, *_remarks(question)]), T


def _remarks(question: Question) -> list[str]:
    """What a person should be told besides the reasons to doubt."""
    observation, candidate, remarks = question.observation, question.candidate, []
    if observation.noise.added:
        share = f"{100 * observation.noise.relative:.2g} % of the gradient"
        sigma = float(observation.noise.level.square().mean().sqrt())
        remarks.append(
            (
                f"The update is a difference of rounded weights, which leaves noise of {share} in "
                "it; features carry that noise."
            )
            if is_rounding_of_weights(question.head, sigma)
            else (
                f"Noise of {share} was found in it (its columns do not sum to zero); features "
                "carry that noise."
            )
        )
    weak = (candidate.certificate.errors >= TRUSTED_ERROR).nonzero()[:, 0].tolist()
    if candidate.explains and weak:
        remarks.append(f"Not determined to 0.1 % at this precision: sample {name_some(weak)}.")
    if candidate.explains and float(candidate.at.floor) > 0:
        remarks.append(
            f"Label smoothing of {float(candidate.at.floor) * observation.classes:.4f} was found."
        )
    return remarks
