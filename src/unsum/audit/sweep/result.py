"""Sweep: leakage and accuracy at every strength that was tried, and the weakest one that is enough."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from unsum.audit.result import SCHEMA_VERSION, UNFINISHED, Setting, check_folder, finite
from unsum.audit.sweep.task import Accuracy, Task
from unsum.defend.axis import Axis
from unsum.files.writing import write_text


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


@dataclass(frozen=True)
class Curve:
    """One defense at several strengths, the weakest first; a switch has no axis and a single point."""

    name: str
    axis: Axis | None
    points: list[Point]

    def enough(self, level: float) -> Point | None:
        """The weakest strength from which on every one tried keeps all samples under the level.

        A strength whose stronger neighbor leaks again was lucky, and is not enough. One that could not be attacked is
        neither: no measurement speaks for it.
        """
        chosen = None
        for point in reversed([p for p in self.points if not p.refused]):
            if not point.worst < level:
                break
            chosen = point
        return chosen


@dataclass(frozen=True)
class Sweep:
    """The answer to: how strong must a defense be here, and what does that cost?

    `references` are the same round without any defense and, where some are applied before the swept one, with these alone.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> result = unsum.sweep(model, data, over="sign", utility=False)
        >>> round(result.undefended.worst, 1), len(result.curves)
        (1.0, 1)
    """

    setting: Setting
    keep_under: float
    references: list[Point]
    curves: list[Curve]
    task: Task | None
    granted: list[str]
    titles: list[str]
    seconds: float

    @property
    def undefended(self) -> Point:
        return self.references[0]

    def cost(self, point: Point) -> float:
        """Accuracy lost against no defense, from 0 to 1; NaN where it was not measured."""
        before, after = self.undefended.accuracy, point.accuracy
        return before.mean - after.mean if before and after else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, in plain types; what could not be measured is null."""
        content = {
            "schema": SCHEMA_VERSION,
            "kind": "sweep",
            "keep_under": self.keep_under,
            "enough": [self._enough(curve) for curve in self.curves],
            "granted": self.granted,
            "setting": asdict(self.setting),
            "task": asdict(self.task) if self.task else None,
            "references": [point.to_dict() for point in self.references],
            "sweeps": [
                {"defense": curve.name, "points": [point.to_dict() for point in curve.points]} for curve in self.curves
            ],
            "seconds": self.seconds,
        }
        plain: dict[str, Any] = finite(content)
        return plain

    def _enough(self, curve: Curve) -> dict[str, Any]:
        point = curve.enough(self.keep_under)
        return {
            "defense": curve.name,
            "found": point is not None,
            "strength": point.strength if point else None,
            "defenses": point.defenses if point else None,
            "accuracy_cost": self.cost(point) if point else None,
        }

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write `sweep.html` and `sweep.json`; an existing folder is written to only with `force`."""
        from unsum.audit.sweep.report import render  # here, so that importing unsum does not import jinja2

        folder = Path(folder)
        check_folder(folder, force=force)
        page = render(self)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "sweep.html", page)
        write_text(folder / "sweep.json", json.dumps(self.to_dict(), indent=2) + "\n")
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)  # what an interrupted sweep had kept
        return folder / "sweep.html"


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
