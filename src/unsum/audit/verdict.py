"""What the figures mean, in words an officer can sign."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from unsum.leak import Leak
from unsum.score import SampleScore

Level = Literal["severe", "partial", "labels", "low"]

EXACT_ERROR = 1e-3  # features this close are the client's own, up to rounding
CLOSE_ERROR = 0.3  # features this close still give the sample away
RECOGNISABLE_PSNR = 18.0  # dB from which people recognise the pictures of our inverses


@dataclass(frozen=True)
class Verdict:
    """`leakage` is the share of samples given away, from 0 to 1; `headline` says it in one sentence, `details` why."""

    level: Level
    leakage: float
    headline: str
    details: list[str]


def judge(leak: Leak, samples: list[SampleScore]) -> Verdict:
    """The verdict over one audited round."""
    total = len(samples)
    close = sum(row.feature_error < CLOSE_ERROR for row in samples)
    labels = sum(row.label_correct == 1.0 for row in samples)
    level: Level = "severe" if close == total else "partial" if close else "labels" if labels > total / 2 else "low"
    return Verdict(level, close / total, _headline(level, close, total), _details(leak, samples, labels))


def judge_captured(leak: Leak) -> Verdict:
    """The verdict where there is no truth: it rests on the attack's own prediction and certificate."""
    count, sure = leak.batch_size, leak.predicted_error < CLOSE_ERROR
    level: Level = "severe" if leak.exact else "partial" if sure else "low"
    samples = "its sample" if count == 1 else f"all {count} samples of its batch"
    if leak.exact:
        headline = f"This update gives away {samples}, and the attack certifies it."
    elif sure:
        headline = f"This update probably gives away {samples}; the attack does not certify it."
    else:
        headline = "This attack read nothing out of this update that it would vouch for."
    details = [
        f"Nothing could be compared: the update was captured elsewhere, so these are the attack's own figures for the {count} "
        f"{'sample' if count == 1 else 'samples'} it found.",
        f"It predicts an error of {leak.predicted_error:.1e} in the features, and leaves {leak.residual:.1e} of the gradient "
        "unexplained.",
        _certificate(leak),
    ]
    if leak.inputs_exact is not None:
        details.append(f"{int(leak.inputs_exact.sum())} of {count} inputs were certified exact, layer by layer.")
    return Verdict(level, 1.0 if sure else 0.0, headline, details)


def _headline(level: Level, close: int, total: int) -> str:
    if level == "severe":
        return (
            "This update gives away every sample of the batch." if total > 1 else "This update gives its sample away."
        )
    if level == "partial":
        return f"This update gives away {close} of its {total} samples."
    if level == "labels":
        return "This update gives away what the samples are, but not how they look."
    return "This attack recovered no sample from this update."


def _details(leak: Leak, samples: list[SampleScore], labels: int) -> list[str]:
    total = len(samples)
    exact = sum(row.feature_error < EXACT_ERROR for row in samples)
    worst = max(row.feature_error for row in samples)
    details = [
        f"{labels} of {total} labels were recovered.",
        f"The features that reach the last layer were recovered to within 0.1 % for {exact} of {total} samples "
        f"(largest error {worst:.1e}).",
        _certificate(leak),
    ]
    pictures = [row for row in samples if not math.isnan(row.psnr)]
    if pictures:
        # A sample that was not found is scored as mid-grey: it counts in the mean, but it did not come back.
        good = sum(row.found is not None and row.psnr >= RECOGNISABLE_PSNR for row in pictures)
        details.append(
            f"{good} of {total} pictures came back at {RECOGNISABLE_PSNR:g} dB or better, where people usually recognise "
            f"them (mean {math.fsum(row.psnr for row in pictures) / len(pictures):.1f} dB)."
        )
    if leak.batch_size < total:
        details.append(f"The attack took the batch for {leak.batch_size} instead of {total} samples.")
    if leak.batch_size > total:
        details.append(
            f"The attack took the batch for {leak.batch_size} instead of {total} samples; each true sample is compared with "
            "the nearest of them, which flatters the attack."
        )
    return details


def _certificate(leak: Leak) -> str:
    if leak.exact:
        return "The attacker knows it, too: its own certificate calls the answer exact, without seeing the truth."
    return "The attacker cannot be sure: its own certificate does not call the answer exact."
