"""Leakage and accuracy at every strength that was tried, and the weakest one that is enough."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from unsum.audit.point import Point
from unsum.audit.result import SCHEMA_VERSION, Setting, finite
from unsum.audit.sweep.task import Task
from unsum.defend.axis import Axis


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
class SweepResult:
    """The answer to: how strong must a defense be here, and what does that cost?

    `references` are the same round without any defense and, where some are applied before the swept one, with these alone.
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
