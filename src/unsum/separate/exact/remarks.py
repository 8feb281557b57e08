"""What a person should be told about an answer: reasons to doubt it, and what else was found."""

from __future__ import annotations

from unsum.separate.exact.candidate import Candidate, runaways
from unsum.separate.exact.observation import Observation


def find_doubts(
    observation: Observation, candidate: Candidate, groups: list[list[int]], batch_size: int | None
) -> list[str]:
    """Every reason why the answer must not be called exact, beyond its predicted error."""
    doubts = []
    B, certificate = len(candidate.at.T), candidate.certificate
    if not candidate.plausible:
        doubts.append("The targets that fit best are no probabilities: this is not a solution.")
    elif candidate.verified and candidate.explains and observation.rank > B:
        doubts.append(
            f"{B} samples are given, and they explain the gradient, but it has {observation.rank} directions: "
            f"{observation.rank - B} more may be in it that left hardly a trace."
        )
    elif candidate.verified:
        doubts.append(
            f"{B} samples of about {observation.rank} are given: each fits the gradient on its own, "
            "but together they do not explain it, so some are missing or wrong."
        )
    elif not candidate.explains:
        doubts.append(
            f"The answer misses the gradient by {certificate.misfit:.1e} times its noise: "
            "it is the best of several starts, not a solution."
        )
        if observation.classes - 1 <= B:
            doubts.append("A batch of about as many samples as classes or more leaves too few equations.")
    elif not candidate.agreed:
        doubts.append("No second start led to this solution.")
    away = runaways(observation, candidate.at.T).nonzero()[:, 0].tolist()
    if away:
        doubts.append(f"Sample {name_some(away)} came out far longer than the others, as false ones do.")
    for group in groups:
        members = ", ".join(str(index) for index in group)
        doubts.append(f"Samples {members} cannot be told apart at the gradient's precision; each is their mean.")
    if batch_size is not None and batch_size != B:
        doubts.append(f"The batch was said to hold {batch_size} samples, but {B} were found.")
    elif batch_size is None and observation.grad_b is None and observation.rank >= observation.A.shape[1]:
        doubts.append(
            "Without a bias gradient, a batch may hold more samples than the head has inputs; nothing shows it."
        )
    missing = _without_trace(observation, candidate)
    if missing and batch_size is None:  # else the count is known, and another scale is a defense's doing
        doubts.append(f"The batch may have held {B + missing} samples: {missing} of them would have left no trace.")
    factor = float(candidate.at.alpha)
    if observation.reduction == "sum" and round(factor) > 1 and abs(factor / round(factor) - 1) < 1e-4:
        doubts.append(f"A sum {round(factor)} times too large: each sample may stand for that many of its like.")
    return doubts


def find_remarks(observation: Observation, candidate: Candidate) -> list[str]:
    """What was found besides the samples."""
    remarks = []
    if observation.noise.added:
        remarks.append(
            f"Noise of {100 * observation.noise.relative:.2g} % of the gradient was found in it "
            "(its columns do not sum to zero); features carry that noise."
        )
    weak = (candidate.certificate.errors >= 1e-3).nonzero()[:, 0].tolist()
    if candidate.explains and weak:
        remarks.append(f"Not determined to 0.1 % at this precision: sample {name_some(weak)}.")
    if candidate.explains and float(candidate.at.floor) > 0:
        remarks.append(f"Label smoothing of {float(candidate.at.floor) * observation.classes:.4f} was found.")
    return remarks


def name_some(samples: list[int]) -> str:
    """The first eight of them, and how many more there are."""
    more = f" and {len(samples) - 8} more" if len(samples) > 8 else ""
    return ", ".join(map(str, samples[:8])) + more


def _without_trace(observation: Observation, candidate: Candidate) -> int:
    """Samples that a plain mean counts but the gradient does not show: α = 1/(B + missing)."""
    if observation.reduction != "mean" or not candidate.explains or candidate.verified:
        return 0
    B = len(candidate.at.T)
    total = 1 / float(candidate.at.alpha)
    tolerance = min(1e-2, max(1e-4, 5 * candidate.certificate.log_alpha_deviation))
    return round(total) - B if B < round(total) <= 2 * B + 8 and abs(total / round(total) - 1) < tolerance else 0
