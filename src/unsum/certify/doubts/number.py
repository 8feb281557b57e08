"""The number of samples: as was said, as a mean or a sum tells it, and as labels allow."""

from __future__ import annotations

from unsum.certify.question import Question, name_some

_LABEL = 1e-2  # share of a target that makes a class one of a sample's labels
_MIXED = 2  # labels that one sample may carry: more are several samples'


def doubt_number(question: Question) -> list[str]:
    """The doubt that the batch held another number of samples than were found."""
    observation, candidate = question.observation, question.candidate
    B, said = len(candidate.at.T), question.batch_size
    if said is not None and said != B:
        return [f"The batch was said to hold {said} samples, but {B} were found."]
    if said is not None:
        return _fewer_than_said(question)
    doubts = _several_labels(question)
    if observation.grad_b is None and observation.rank >= observation.inputs:
        doubts.append(
            "Without a bias gradient, a batch may hold more samples than the head has inputs that "
            "are not zero; nothing shows it."
        )
    doubts += doubt_missing(question)
    factor = float(candidate.at.alpha)
    if (
        observation.reduction == "sum"
        and round(factor) > 1
        and abs(factor / round(factor) - 1) < 1e-4
    ):
        doubts.append(
            f"A sum {round(factor)} times too large: each sample may stand for that many of its "
            "like."
        )
    return doubts


def doubt_missing(question: Question, hidden: float = 0.0) -> list[str]:
    """The doubt that more samples were counted than show; `hidden` is what they may send, as a
    share of the gradient."""
    missing, B = _without_trace(question, hidden), len(question.candidate.at.T)
    if not missing:
        return []
    return [
        (
            f"The batch may have held {B + missing} samples: {missing} of them would have left no "
            "trace."
        )
    ]


def _several_labels(question: Question) -> list[str]:
    candidate = question.candidate
    if question.observation.loss.many_labels:
        return []
    labels = ((candidate.Y - candidate.at.floor) > _LABEL).sum(1) // question.observation.loss.heads
    crowded = labels.gt(_MIXED).nonzero()[:, 0].tolist()
    if not crowded:
        return []
    several = (
        f"Sample {name_some(crowded)} {'carries' if len(crowded) == 1 else 'carry'} several labels "
        "at once"
    )
    return [f"{several}: each may be several samples with equal features."]


def _fewer_than_said(question: Question) -> list[str]:
    """Where k of B samples left no trace, the others send what B of them would at a scale of (B −
    k)/B: some are copies then."""
    candidate, B = question.candidate, len(question.candidate.at.T)
    if (
        question.observation.reduction != "mean"
        or not candidate.equation.alpha_free
        or not candidate.explains
    ):
        return []
    sent = question.scale * B
    tolerance = min(1e-2, max(1e-4, 5 * candidate.certificate.log_alpha_deviation))
    if not 1 <= round(sent) < B or abs(sent / round(sent) - 1) > tolerance:
        return []
    return [
        (
            f"{B - round(sent)} of the {B} samples may have left no trace, and others be given in "
            "their place."
        )
    ]


def _without_trace(question: Question, hidden: float) -> int:
    """Samples that a plain mean counts but the gradient does not show: α = 1/(B + missing), but for
    what they send."""
    candidate = question.candidate
    if question.observation.reduction != "mean" or not candidate.explains or candidate.verified:
        return 0
    B = len(candidate.at.T)
    total = B / question.scale
    tolerance = min(1e-2, max(1e-4, hidden, 5 * candidate.certificate.log_alpha_deviation))
    return (
        round(total) - B
        if B < round(total) <= 2 * B + 8 and abs(total / round(total) - 1) < tolerance
        else 0
    )
