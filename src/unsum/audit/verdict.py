"""What the figures mean, in words an officer can sign."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from unsum.audit.leakage import DEFAULT_LEVEL, vouched
from unsum.audit.wording import error, percent, sample_count
from unsum.leak import Leak
from unsum.score import SampleScore

Level = Literal["severe", "partial", "labels", "low", "open"]

EXACT_ERROR = 1e-3  # features this close are the client's own, up to rounding
CLOSE_ERROR = 0.3  # features this close still give the sample away
RECOGNIZABLE_PSNR = 18.0  # dB from which people recognize the pictures of our inverses


@dataclass(frozen=True)
class Verdict:
    """`share` is how many of the samples were given away, from 0 to 1; `headline` says it in one sentence, `details` why."""

    level: Level
    share: float
    headline: str
    details: list[str]


def judge(leak: Leak, samples: list[SampleScore], leakages: Sequence[float] = ()) -> Verdict:
    """The verdict over one audited round."""
    total = len(samples)
    close = sum(row.feature_error < CLOSE_ERROR for row in samples)
    labels = sum(row.label_correct == 1.0 for row in samples)
    part = sum(value >= DEFAULT_LEVEL for value in leakages)
    level: Level = "severe" if close == total else "partial" if close or part else "low"
    if level == "low" and labels > total / 2:
        level = "labels"
    return Verdict(
        level, close / total, _headline(level, close, part, total), _details(leak, samples, labels, leakages)
    )


def judge_captured(leak: Leak) -> Verdict:
    """The verdict over an update that came without the truth: the attack's own certificate is all there is."""
    total = leak.batch_size
    known = [value for value in (vouched(leak, i) for i in range(total)) if value >= DEFAULT_LEVEL]
    level: Level = "severe" if len(known) == total else "partial" if known else "open"
    headline = {
        "severe": "This update gives away every sample that was found in it.",
        "partial": f"This update gives away {len(known)} of the {total} samples that were found in it.",
        "open": "The attack answered, but does not vouch for its answer.",
    }[level]
    classes = len(set(leak.labels.tolist()))
    details = [
        f"Found in the update: {sample_count(total)} of {classes} {'class' if classes == 1 else 'classes'}.",
        _certificate(leak),
        "The truth is not known here, so nothing was compared with it: the confidence is the attack's own.",
    ]
    if leak.inputs_exact is not None:
        details.insert(1, f"{int(leak.inputs_exact.sum())} of {total} inputs are certified to be the client's own.")
    return Verdict(level, len(known) / total, headline, details)


def _headline(level: Level, close: int, part: int, total: int) -> str:
    if level == "severe":
        return (
            "This update gives away every sample of the batch." if total > 1 else "This update gives its sample away."
        )
    if level == "partial" and close:
        return f"This update gives away {close} of its {total} samples."
    if level == "partial":
        return f"This update gives away a part of {part} of its {total} samples."
    if level == "labels":
        return "This update gives away what the samples are, but not how they look."
    return "This attack recovered no sample from this update."


def _details(leak: Leak, samples: list[SampleScore], labels: int, leakages: Sequence[float]) -> list[str]:
    total = len(samples)
    exact = sum(row.feature_error < EXACT_ERROR for row in samples)
    worst = max(row.feature_error for row in samples)
    details = [
        f"{labels} of {total} labels were recovered.",
        f"The features that reach the last layer were recovered to within 0.1 % for {exact} of {total} samples "
        f"(largest error {error(worst)}).",
        _certificate(leak),
    ]
    if leakages:
        details.insert(
            0,
            f"Leakage is up to {percent(max(leakages))} and {percent(math.fsum(leakages) / total)} on average: 100 % is the "
            "sample itself, 0 % is no better than a typical sample of this client.",
        )
    pictures = [row for row in samples if not math.isnan(row.psnr)]
    if pictures:
        # A sample that was not found is scored as mid-gray: it counts in the mean, but it did not come back.
        good = sum(row.found is not None and row.psnr >= RECOGNIZABLE_PSNR for row in pictures)
        details.append(
            f"{good} of {total} pictures came back at {RECOGNIZABLE_PSNR:g} dB or better, where people usually recognize "
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
