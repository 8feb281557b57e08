"""What a person should be told about an answer besides the reasons to doubt it."""

from __future__ import annotations

from unsum.certify.claim import TRUSTED_ERROR
from unsum.certify.question import Question, name_some


def find_remarks(question: Question) -> list[str]:
    """What was found besides the samples."""
    observation, candidate, remarks = question.observation, question.candidate, []
    if observation.noise.added:
        remarks.append(
            f"Noise of {100 * observation.noise.relative:.2g} % of the gradient was found in it "
            "(its columns do not sum to zero); features carry that noise."
        )
    weak = (candidate.certificate.errors >= TRUSTED_ERROR).nonzero()[:, 0].tolist()
    if candidate.explains and weak:
        remarks.append(f"Not determined to 0.1 % at this precision: sample {name_some(weak)}.")
    if candidate.explains and float(candidate.at.floor) > 0:
        remarks.append(f"Label smoothing of {float(candidate.at.floor) * observation.classes:.4f} was found.")
    return remarks
