"""Leakage and accuracy at every strength that was tried, the weakest one that is enough, and
sentences for whoever decides."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from unsum.audit.ceiling_words import stands_at
from unsum.audit.result import SCHEMA_VERSION, Setting, finite
from unsum.audit.sweep.bench import Point
from unsum.audit.sweep.task import Task, ruins
from unsum.audit.verdict import Level
from unsum.audit.wording import percent
from unsum.defend.defense import Axis

# from what no attack minds to what proves something of the default model
DEFAULT_RANGE = "noise=1e-3..10"


@dataclass(frozen=True)
class Curve:
    """One defense at several strengths, the weakest first; a switch has no axis and a single
    point."""

    name: str
    axis: Axis | None
    points: list[Point]
    # the last one, which nobody asked for: the first beyond the others that is proven
    added: bool = False

    def enough(self, level: float) -> Point | None:
        """The weakest strength from which on every one tried keeps all samples under the level.

        A strength whose stronger neighbor leaks again was lucky, and is not enough. One that could
        not be attacked is neither: no measurement speaks for it.
        """
        chosen = None
        for point in reversed([p for p in self.points if not p.refused]):
            if not point.under(level):
                break
            chosen = point
        return chosen

    def chosen(self, level: float) -> Point | None:
        """The strength to speak of: one that is proven, or else one that keeps the attacks tried
        out."""
        return self.proven(level) or self.enough(level)

    def proven(self, level: float) -> Point | None:
        """The weakest strength from which on every one tried has all ceilings below the level."""
        chosen = None
        for point in reversed(self.points):
            if not point.proven(level):
                break
            chosen = point
        return chosen


@dataclass(frozen=True)
class SweepResult:
    """The answer to: how strong must a defense be here, and what does that cost?

    `references` are the same round without any defense and, where some are applied before the swept
    one, with these alone.
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

    def ruins(self, point: Point) -> bool:
        """Whether the model no longer learns, as far as accuracy was measured.

        Where it was not without any defense, the best of all strengths stands for it, which is no
        more than that.
        """
        if point.accuracy is None or self.task is None:
            return False
        known = [
            one.accuracy
            for curve in self.curves
            for one in curve.points
            if one.accuracy is not None
        ]
        before = self.undefended.accuracy or max(known, key=lambda one: one.mean)
        return ruins(before, point.accuracy, self.task.chance)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, in plain types; what could not be measured is null."""
        content = {
            "schema": SCHEMA_VERSION,
            "kind": "sweep",
            "keep_under": self.keep_under,
            "enough": [self._chosen(curve, curve.enough(self.keep_under)) for curve in self.curves],
            "proven": [self._chosen(curve, curve.proven(self.keep_under)) for curve in self.curves],
            "granted": self.granted,
            "setting": asdict(self.setting),
            "task": asdict(self.task) if self.task else None,
            "references": [point.to_dict() for point in self.references],
            "sweeps": [
                {
                    "defense": curve.name,
                    "added": curve.added,
                    "points": [point.to_dict() for point in curve.points],
                }
                for curve in self.curves
            ],
            "seconds": self.seconds,
        }
        return finite(content)

    def _chosen(self, curve: Curve, point: Point | None) -> dict[str, Any]:
        """The weakest strength that keeps the attacks out, or that is proven, and what it costs."""
        return {
            "defense": curve.name,
            "found": point is not None,
            "strength": point.strength if point else None,
            "defenses": point.defenses if point else None,
            "accuracy_cost": self.cost(point) if point else None,
            "ruins": self.ruins(point) if point else None,
        }


def short(strength: float | None) -> str:
    """A strength as it can be typed again: 0.0158, 1e-05; a switch is simply on."""
    return "on" if strength is None else f"{strength:g}"


def headline(sweep: SweepResult) -> str:
    """The answer in one sentence."""
    level = percent(sweep.keep_under)
    proofs = [
        (curve, p) for curve in sweep.curves if (p := curve.proven(sweep.keep_under)) is not None
    ]
    if sweep.undefended.under(sweep.keep_under):
        return (
            f"Without any defense, the attacks tried already read less than {level} of every "
            "sample."
        )
    if proofs:
        curve, point = _cheapest(sweep, proofs)
        return (
            f"{_titled(curve, point)} proves that nobody reads {level} of any "
            f"sample{_price(sweep, point)}."
        )
    found = [
        (curve, p) for curve in sweep.curves if (p := curve.enough(sweep.keep_under)) is not None
    ]
    if all(point.refused for curve in sweep.curves for point in curve.points):
        return (
            "Not decidable: no strength could be attacked, so this page cannot say whether one is "
            "enough."
        )
    if not found:
        return f"None of the strengths tried keeps every sample under {level}."
    if len(sweep.curves) > 1:
        lost = sum(sweep.ruins(point) for _, point in found)
        who = "it" if len(found) == 1 else f"{lost} of them"
        ruined = f"; {who} {'ruins' if lost == 1 else 'ruin'} the model" if lost else ""
        keep = "keeps" if len(found) == 1 else "keep"
        priced = [pair for pair in found if not math.isnan(sweep.cost(pair[1]))]
        least = f"; {_called(*_cheapest(sweep, priced))} costs least" if len(priced) > 1 else ""
        kept = (
            f"{len(found)} of {len(sweep.curves)} defenses {keep} the attacks tried under "
            f"{level}{least}{ruined}"
        )
        return f"{kept}; {'it is not' if len(found) == 1 else 'none of them is'} proven."
    curve, point = found[0]
    kept = f"{_titled(curve, point)} keeps the attacks tried under {level}{_price(sweep, point)}"
    return f"{kept}; unproven: {stands_at(point)}."


def _cheapest(sweep: SweepResult, pairs: list[tuple[Curve, Point]]) -> tuple[Curve, Point]:
    """By the accuracy that it costs; the first where that was measured of none."""
    priced = [pair for pair in pairs if not math.isnan(sweep.cost(pair[1]))]
    return min(priced or pairs, key=lambda pair: sweep.cost(pair[1]) if priced else 0.0)


def level(sweep: SweepResult) -> Level:
    """The color of the answer: whether all, some or none of the defenses can be set strong enough
    and leave a model to train."""
    if all(point.refused for curve in sweep.curves for point in curve.points):
        return "open"
    enough = [curve.enough(sweep.keep_under) for curve in sweep.curves]
    fit = [point is not None and not sweep.ruins(point) for point in enough]
    proven = [curve.proven(sweep.keep_under) for curve in sweep.curves]
    if all(point is not None and not sweep.ruins(point) for point in proven):
        return "protected"
    return "unproven" if all(fit) else "partial" if any(enough) else "severe"


def sentences(sweep: SweepResult) -> list[str]:
    """One for no defense and one for each defense that was tried."""
    point = sweep.undefended
    first = f"Without any defense, {_leaking(sweep, point)}"
    trained = (
        f"; a small network learns to {percent(point.accuracy.mean)} accuracy."
        if point.accuracy
        else "."
    )
    return [first + trained, *(_sentence(sweep, curve) for curve in sweep.curves)]


def _sentence(sweep: SweepResult, curve: Curve) -> str:
    enough, proven = curve.enough(sweep.keep_under), curve.proven(sweep.keep_under)
    if enough is None and proven is None:
        return _not_enough(sweep, curve)
    said = [_kept(sweep, curve, enough)] if enough is not None and enough is not proven else []
    return " ".join([*said, _proof(sweep, curve)])


def _kept(sweep: SweepResult, curve: Curve, point: Point) -> str:
    """The strength that keeps the attacks tried out, which proves nothing."""
    weakest = " is the weakest strength tried that keeps" if curve.axis else " keeps"
    labels = (
        f" {point.labels_right} of {len(sweep.titles)} labels were found all the same."
        if point.labels_read
        else ""
    )
    against = (
        f"{_titled(curve, point)}{weakest} the attacks tried under {percent(sweep.keep_under)}"
    )
    return f"{against}{_price(sweep, point)}.{labels}"


def _not_enough(sweep: SweepResult, curve: Curve) -> str:
    measured = [p for p in curve.points if not p.refused]
    if not measured:
        return (
            f"{_capital(curve.name)} could not be attacked, so nothing speaks for it. "
            f"{curve.points[0].refused}"
        )
    strongest = measured[-1]
    leaking = _leaking(sweep, strongest)
    if curve.axis is None:
        return f"{_capital(curve.name)} is not enough: {leaking}{_paid(sweep, strongest)}."
    reached = f"at {short(strongest.strength)}, the strongest, {leaking}"
    return (
        f"{_capital(curve.name)}: none of the strengths tried is enough; "
        f"{reached}{_paid(sweep, strongest)}."
    )


def _proof(sweep: SweepResult, curve: Curve) -> str:
    """From which strength on nobody reads the level, whatever is tried, and what that costs."""
    point, level = curve.proven(sweep.keep_under), percent(sweep.keep_under)
    if point is None:
        lowest = min(
            curve.points, key=lambda one: one.ceiling if one.ceiling == one.ceiling else math.inf
        )
        best = stands_at(lowest)
        return (
            f"It is not proven: {best}."
            if len(curve.points) == 1
            else f"No strength tried is proven: at best, {best}."
        )
    weakest = " is the weakest strength tried that" if curve.axis else ""
    further = " It was added: no strength asked for is proven." if curve.added else ""
    return (
        f"{_titled(curve, point)}{weakest} proves that nobody reads {level} of any "
        f"sample{_price(sweep, point)}.{further}"
    )


def closer(sweep: SweepResult, curve: Curve) -> str:
    """How to find the strength that is just enough more closely, where there is room between two
    that were tried."""
    point = curve.enough(sweep.keep_under)
    measured = [p for p in curve.points if not p.refused]
    if curve.axis is None or curve.axis.whole or point is None or point is measured[0]:
        return ""
    weaker = measured[measured.index(point) - 1]
    low, high = sorted([short(weaker.strength), short(point.strength)], key=float)
    return (
        f"Between {short(weaker.strength)} and {short(point.strength)} the largest leakage falls "
        f"from {percent(weaker.worst)} to {percent(point.worst)}; --sweep "
        f"{curve.name}={low}..{high} finds the place more closely."
    )


def _leaking(sweep: SweepResult, point: Point) -> str:
    unknown, total = sum(math.isnan(row.leakage) for row in point.samples), len(sweep.titles)
    count = point.over(sweep.keep_under) - unknown
    of_others = f", and of {unknown} nobody knows" if unknown else ""
    return (
        f"{count} of {total} samples {'leaks' if count == 1 else 'leak'} "
        f"{percent(sweep.keep_under)} or more{of_others}"
    )


def _called(curve: Curve, point: Point) -> str:
    return curve.name if point.strength is None else f"{curve.name} of {short(point.strength)}"


def _titled(curve: Curve, point: Point) -> str:
    """The same at the beginning of a sentence."""
    return _capital(_called(curve, point))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _price(sweep: SweepResult, point: Point) -> str:
    """What a strength costs that does what is asked of it, as the end of a sentence."""
    paid = _paid(sweep, point)
    return paid.replace(", and ", ", but ruins the model: ", 1) if sweep.ruins(point) else paid


def _paid(sweep: SweepResult, point: Point) -> str:
    if point.accuracy is None:
        return ""
    if sweep.undefended.accuracy is None:
        return f", and accuracy is {percent(point.accuracy.mean)}"
    return (
        f", and accuracy is {percent(point.accuracy.mean)} instead of "
        f"{percent(sweep.undefended.accuracy.mean)}"
    )
