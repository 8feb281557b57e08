"""What the figures mean, in sentences for whoever decides."""

from __future__ import annotations

import math

from unsum.audit.point import Point
from unsum.audit.sweep.result import Curve, SweepResult
from unsum.audit.verdict import Level
from unsum.audit.wording import percent


def short(strength: float | None) -> str:
    """A strength as it can be typed again: 0.0158, 1e-05; a switch is simply on."""
    return "on" if strength is None else f"{strength:g}"


def headline(sweep: SweepResult) -> str:
    """The answer in one sentence."""
    level = percent(sweep.keep_under)
    if sweep.undefended.worst < sweep.keep_under:
        return f"Without any defense, this attack already stays under {level} for every sample."
    found = [curve for curve in sweep.curves if curve.enough(sweep.keep_under)]
    if all(point.refused for curve in sweep.curves for point in curve.points):
        return "No strength could be attacked, so this page cannot say whether one is enough."
    if not found:
        return f"None of the strengths tried keeps every sample under {level}."
    if len(sweep.curves) > 1:
        return f"{len(found)} of {len(sweep.curves)} defenses keep every sample under {level}{_cheapest(sweep, found)}."
    point = found[0].enough(sweep.keep_under)
    assert point is not None
    return f"{_called(found[0], point)} keeps every sample under {level}."


def level(sweep: SweepResult) -> Level:
    """The color of the answer: whether all, some or none of the defenses can be set strong enough."""
    if all(point.refused for curve in sweep.curves for point in curve.points):
        return "partial"
    enough = [curve.enough(sweep.keep_under) is not None for curve in sweep.curves]
    return "low" if all(enough) else "partial" if any(enough) else "severe"


def sentences(sweep: SweepResult) -> list[str]:
    """One for no defense and one for each defense that was tried."""
    point = sweep.undefended
    first = f"Without any defense, {_leaking(sweep, point)}"
    trained = f"; a small network learns to {percent(point.accuracy.mean)} accuracy." if point.accuracy else "."
    return [first + trained, *(_sentence(sweep, curve) for curve in sweep.curves)]


def _sentence(sweep: SweepResult, curve: Curve) -> str:
    point, total = curve.enough(sweep.keep_under), len(sweep.titles)
    if point is not None:
        weakest = " is the weakest strength tried that is enough" if curve.axis else " is enough"
        labels = f"; labels still found: {point.labels_right} of {total}" if point.labels_right else ""
        return f"{_called(curve, point)}{weakest}{_price(sweep, point)}{labels}."
    measured = [p for p in curve.points if not p.refused]
    if not measured:
        return f"{curve.name}: could not be attacked, so nothing speaks for it. {curve.points[0].refused}"
    strongest = measured[-1]
    leaking = _leaking(sweep, strongest)
    if curve.axis is None:
        return f"{curve.name} is not enough: {leaking}{_price(sweep, strongest)}."
    reached = f"at {short(strongest.strength)}, the strongest, {leaking}"
    return f"{curve.name}: none of the strengths tried is enough; {reached}{_price(sweep, strongest)}."


def closer(sweep: SweepResult, curve: Curve) -> str:
    """How to find the strength that is just enough more closely, where there is room between two that were tried."""
    point = curve.enough(sweep.keep_under)
    measured = [p for p in curve.points if not p.refused]
    if curve.axis is None or curve.axis.whole or point is None or point is measured[0]:
        return ""
    weaker = measured[measured.index(point) - 1]
    low, high = sorted([short(weaker.strength), short(point.strength)], key=float)
    return (
        f"Between {short(weaker.strength)} and {short(point.strength)} the largest leakage falls from {percent(weaker.worst)} to "
        f"{percent(point.worst)}; --sweep {curve.name}={low}..{high} finds the place more closely."
    )


def _cheapest(sweep: SweepResult, found: list[Curve]) -> str:
    """Which of several that are enough costs least, where accuracy was measured."""
    pairs = [(curve, point) for curve in found if (point := curve.enough(sweep.keep_under)) is not None]
    priced = [pair for pair in pairs if not math.isnan(sweep.cost(pair[1]))]
    if len(priced) < 2:
        return ""
    return f"; {_called(*min(priced, key=lambda pair: sweep.cost(pair[1])))} costs least"


def _leaking(sweep: SweepResult, point: Point) -> str:
    count, total = point.over(sweep.keep_under), len(sweep.titles)
    return f"{count} of {total} samples {'leaks' if count == 1 else 'leak'} {percent(sweep.keep_under)} or more"


def _called(curve: Curve, point: Point) -> str:
    return curve.name if point.strength is None else f"{curve.name} of {short(point.strength)}"


def _price(sweep: SweepResult, point: Point) -> str:
    if math.isnan(sweep.cost(point)) or point.accuracy is None or sweep.undefended.accuracy is None:
        return ""
    return f", and accuracy is {percent(point.accuracy.mean)} instead of {percent(sweep.undefended.accuracy.mean)}"
