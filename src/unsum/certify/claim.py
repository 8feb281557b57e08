"""The one place that grants `exact`: evidence in, claim out, with its notes.

A method lays before it what it knows about its answer. The claim is granted only where every piece
of evidence stands: the answer explains the gradient, something that did not use the answer led to
it as well, no part of the gradient is left without a sample, nobody has a doubt, and the predicted
error is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unsum.leak import Counted

FALSE_ERROR = 1e-2  # relative error of features from which a claim that they are exact is false
TRUSTED_ERROR = 1e-3  # predicted relative error up to which they are called exact: a tenth of that


@dataclass(frozen=True)
class Evidence:
    """What is known about an answer of B samples.

    `errors` (B,) are the predicted relative errors of the features, from the Jacobian.
    `confirmations` counts independent starts, or independent solutions, that ended in the same
    answer; the answer itself is none of them. `missing` counts directions of the gradient that no
    sample accounts for. `doubts` are sentences; one is enough to withhold the claim. `assumed` are
    sentences about what the user declared and the claim stands on. `counted` is how many samples
    there are, as far as it is determined.
    """

    errors: Tensor
    explained: bool
    confirmations: int
    missing: int = 0
    doubts: Sequence[str] = ()
    assumed: Sequence[str] = ()
    counted: Counted | None = None


@dataclass(frozen=True)
class Claim:
    """Whether the answer is exact, the largest predicted error of its features, and why.

    A `predicted_error` of inf means that the gradient does not determine the features. Where
    something else may explain the gradient, the error that the Jacobian predicts is that of one
    explanation: good for choosing among answers, and no prediction of the attack (`predicts` is
    false).
    """

    exact: bool
    predicted_error: float
    notes: list[str] = field(default_factory=list)
    counted: Counted | None = None
    predicts: bool = False


def grant(evidence: Evidence) -> Claim:
    """The claim that the evidence allows."""
    errors = evidence.errors.nan_to_num(nan=torch.inf, posinf=torch.inf)
    predicted = float(errors.max()) if len(errors) else float("inf")
    doubts = list(evidence.doubts)
    if not evidence.explained and not doubts:
        doubts.append("The answer does not explain the gradient.")
    if evidence.explained and evidence.confirmations < 1:
        doubts.append("No second start led to this solution.")
    if evidence.explained and evidence.missing > 0:
        doubts.append(
            f"{evidence.missing} more samples may be in the gradient: it has more directions than "
            "were found."
        )
    predicts = evidence.explained and not doubts
    sure = predicts and predicted < TRUSTED_ERROR
    notes = [*doubts, *(evidence.assumed if sure else ())]
    return Claim(sure, predicted, notes, evidence.counted if sure else None, predicts)


def grant_each(errors: Tensor, *, above: bool, doubts: Sequence[str] = ()) -> Tensor:
    """(B,) which samples' inputs are exact: all that they were computed from is (`above`), and each
    one's own error is small."""
    if not above or doubts:
        return torch.zeros(len(errors), dtype=torch.bool, device=errors.device)
    return errors < TRUSTED_ERROR  # NaN is not below


def nothing(reason: str) -> Claim:
    """The claim of an answer that is none."""
    return Claim(False, float("inf"), [reason])
