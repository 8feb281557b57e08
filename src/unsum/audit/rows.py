"""One sample as every output shows it: the page, the Markdown, the terminal, JUnit and SARIF."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from unsum.audit.leakage import vouched
from unsum.audit.plain import one_line
from unsum.score import SampleScore

if TYPE_CHECKING:
    from unsum.audit.result import Audit


@dataclass(frozen=True)
class Row:
    """A true sample beside what was found of it; without the truth, a sample as the attack found it."""

    title: str
    label: str | None  # the true one
    found_label: str | None
    leakage: float  # measured; without the truth what the certificate vouches for, or NaN
    score: SampleScore | None  # None without the truth
    original: Tensor | None
    recovered: Tensor | None

    @property
    def label_correct(self) -> bool:
        return self.score is not None and self.score.label_correct == 1.0


def rows(audit: Audit) -> list[Row]:
    """One for every true sample; where the truth is not known, one for every sample that was found."""
    count = audit.leak.batch_size if audit.truth is None else len(audit.samples)
    return [_found(audit, i) if audit.truth is None else _compared(audit, i) for i in range(count)]


def _compared(audit: Audit, i: int) -> Row:
    assert audit.truth is not None
    score, found = audit.samples[i], audit.found_label(i)
    return Row(
        title=one_line(audit.truth.titles[i]),
        label=one_line(audit.true_label(i)),
        found_label=None if found is None else one_line(found),
        leakage=audit.leakages[i] if audit.leakages else math.nan,
        score=score,
        original=audit.truth.images[i],
        recovered=_recovered(audit, score.found),
    )


def _found(audit: Audit, i: int) -> Row:
    return Row(
        title=f"recovered sample {i + 1}",
        label=None,
        found_label=one_line(audit.class_name(int(audit.leak.labels[i]))),
        leakage=vouched(audit.leak, i),
        score=None,
        original=None,
        recovered=_recovered(audit, i),
    )


def _recovered(audit: Audit, found: int | None) -> Tensor | None:
    return None if found is None or audit.leak.images is None else audit.leak.images[found]
