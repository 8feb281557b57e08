"""How many samples of each class a client has, where many local steps hide who they are: counts,
intervals, and the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unsum.audit.wording import percent
from unsum.leak import LabelCounts

GIVEN_AWAY = "This update gives away the client's label distribution"
_TELLING = 0.5  # of all labels, that no distribution within the intervals may place otherwise
_SHOWN = 5  # classes of a sentence


@dataclass(frozen=True)
class ClassShare:
    """One class: counts of samples, or shares from 0 to 1 where their number is not known."""

    name: str
    is_share: bool
    found: float
    low: float
    high: float
    true: float | None = None  # where the truth is known

    @property
    def cells(self) -> tuple[str, str, str]:
        """Found, its interval, and the truth, in words."""
        interval = f"{self._said(self.low)} to {self._said(self.high)}"
        return self._said(self.found), interval, "" if self.true is None else self._said(self.true)

    def _said(self, value: float) -> str:
        return percent(value) if self.is_share else f"{value:.0f}"


@dataclass(frozen=True)
class LabelDistribution:
    """All classes, the most frequent first; every interval holds the true value in a share `level`
    of all cases."""

    classes: list[ClassShare]
    samples: int | None
    level: float
    steps: int

    @classmethod
    def of(
        cls, counts: LabelCounts, name: Callable[[int], str], true: Sequence[int] | None = None
    ) -> LabelDistribution:
        """`true` are the labels of the client's samples, where they are known."""
        unit = 1.0 if counts.samples else float(max(1, 0 if true is None else len(true)))
        classes = [
            ClassShare(
                name(c),
                counts.samples is None,
                float(counts.counts[c]),
                float(counts.low[c]),
                float(counts.high[c]),
                None if true is None else list(true).count(c) / unit,
            )
            for c in counts.counts.argsort(descending=True, stable=True).tolist()
        ]
        return cls(classes, counts.samples, counts.level, counts.steps)

    @property
    def sentence(self) -> str:
        """The most frequent classes, for a line."""
        shown = self.classes[:_SHOWN]
        parts = [f"{one.name}: {one.cells[0]} ({one.cells[1]})" for one in shown]
        more = (
            f"; {len(self.classes) - len(shown)} further classes"
            if len(self.classes) > len(shown)
            else ""
        )
        of = f"of {self.samples} samples" if self.samples else "as shares"
        return f"Labels, {of}: {', '.join(parts)}{more}."

    @property
    def meaning(self) -> str:
        right = f"{100 * self.level:.0f} %"
        return (
            f"After {self.steps} local steps samples are added up, and their labels are counted by "
            f"the last layer's bias. An interval holds the true value in {right} of all cases, if "
            "the client trains as declared."
        )

    def to_dict(self) -> dict[str, Any]:
        """In plain types."""
        return asdict(self)


def is_telling(counts: LabelCounts | None) -> bool:
    """Whether the intervals place more than half of the labels: what is above the count in one
    class is missing in others."""
    if counts is None:
        return False
    total = float(counts.samples or 1)
    above = float((counts.high - counts.counts).clamp_min(0).sum())
    below = float((counts.counts - counts.low).clamp_min(0).sum())
    return min(above, below) < _TELLING * total
