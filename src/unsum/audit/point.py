"""A round under one chain of defenses: what came back of every sample, and what the defense costs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from unsum.audit.sweep.task import Accuracy


@dataclass(frozen=True)
class SampleLeak:
    """What came back of one sample."""

    title: str
    leakage: float
    label_correct: bool
    feature_error: float
    feature_cosine: float
    psnr: float  # NaN where there is no picture


@dataclass(frozen=True)
class Point:
    """One strength. Where the attack refused the update, `refused` says why and there are no samples."""

    defenses: str  # the whole chain
    strength: float | None  # None for a switch, and for no defense at all
    samples: list[SampleLeak]
    exact: bool = False
    method: str = ""
    seconds: float = 0.0
    refused: str = ""
    accuracy: Accuracy | None = None
    untrained: str = ""  # why there is no accuracy
    pictures: tuple[Tensor, Tensor | None] | None = field(
        default=None, repr=False
    )  # the most leaked sample, what came back

    @property
    def worst(self) -> float:
        """The leakage of the sample that leaked most; NaN where nothing was measured."""
        return max((row.leakage for row in self.samples), default=math.nan)

    @property
    def mean(self) -> float:
        return _mean([row.leakage for row in self.samples])

    @property
    def psnr(self) -> float:
        return _mean([row.psnr for row in self.samples])

    @property
    def labels_right(self) -> int:
        return sum(row.label_correct for row in self.samples)

    def over(self, level: float) -> int:
        """How many samples are not under the level."""
        return sum(not row.leakage < level for row in self.samples)

    def to_dict(self) -> dict[str, Any]:
        return {
            "defenses": self.defenses,
            "strength": self.strength,
            "largest_leakage": self.worst,
            "mean_leakage": self.mean,
            "labels_right": self.labels_right,
            "certificate": self.exact,
            "attack": self.method,
            "seconds": self.seconds,
            "refused": self.refused or None,
            "accuracy": asdict(self.accuracy) if self.accuracy else None,
            "accuracy_missing": self.untrained or None,
            "samples": [asdict(row) for row in self.samples],
        }


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
