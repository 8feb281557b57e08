"""Where everything goes in the drawing: leakage against strength above, accuracy below, one
horizontal axis for both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from unsum.audit.ceiling_words import ceiling_of
from unsum.audit.sweep.bench import Point
from unsum.audit.sweep.result import Curve, SweepResult, short
from unsum.audit.wording import percent

HEIGHT = 486  # of the drawing, in its units
_NONE = 96  # where "no defense" stands, apart from the axis
_FIRST, _LAST = 168, 716  # where the weakest and the strongest stand
_LEAKAGE = (34, 234)  # top and bottom of the panels
_ACCURACY = (298, 428)  # likewise, of what the model learns
_CLOSE = 52  # numbers nearer than this would run into each other
_APART = 22  # and so would dots nearer than this
_SPREAD = 64  # the width that the dots of one mark may take where marks stand side by side
_BELOW = 30  # the room for the axis' name, where it has none


def _height(value: float, top: float = 1.0, panel: tuple[int, int] = _LEAKAGE) -> float:
    return round(panel[1] - (panel[1] - panel[0]) * min(max(value / top, 0.0), 1.0), 1)


@dataclass(frozen=True)
class Mark:
    """One strength in the drawing; heights are None for what was not measured."""

    x: float
    label: str
    tick: bool
    hint: str
    samples: list[float]
    worst: float | None
    mean: float | None
    accuracy: float | None
    low: float | None
    high: float | None
    enough: bool
    ceiling: float | None = None


@dataclass(frozen=True)
class Plot:
    """A drawing in numbers; the template only writes them down."""

    marks: list[Mark]
    level: float
    summary: str
    paths: dict[str, str]
    axis: str = ""
    leakage_ticks: tuple[tuple[float, str], ...] = tuple(
        (_height(i / 4), f"{25 * i} %") for i in range(5)
    )
    accuracy_ticks: tuple[tuple[float, str], ...] = ()
    undefended: float | None = None
    chance: float | None = None
    width: int = 760
    height: int = HEIGHT
    left: int = 64
    right: int = 742
    leakage: tuple[int, int] = _LEAKAGE
    accuracy: tuple[int, int] = _ACCURACY
    ruins: bool = False  # the strength that is enough leaves no model to train
    proven: bool = False  # that nobody reads the level there, whatever is tried
    apart: float = 0.0  # between the dots of a mark's samples, where there is room beside it
    half: float = 36.0  # of the line at the largest leakage beside others, in units of the drawing


def plot(sweep: SweepResult, curve: Curve) -> Plot:
    """The drawing of one defense, beside no defense at all."""
    reference = sweep.references[-1]
    enough = curve.chosen(sweep.keep_under)
    points = [*sweep.references, *(point for curve in sweep.curves for point in curve.points)]
    highest = max((point.accuracy.high for point in points if point.accuracy), default=1.0)
    # of the accuracy axis: the next whole 20 % above everything
    top = min(math.ceil(highest * 5 + 1e-9) / 5, 1.0)
    marks = [_mark(reference, _NONE, "none" if reference is sweep.undefended else "before", top)]
    places = _places(curve)
    even = any(second - first < _APART for first, second in pairwise(places))
    if even:
        places = [_FIRST + (_LAST - _FIRST) * i / (len(places) - 1) for i in range(len(places))]
    ticks = _ticks(places, curve.points.index(enough) if enough else len(places) - 1)
    for point, x in zip(curve.points, places, strict=True):
        marks.append(
            _mark(point, x, short(point.strength), top, tick=x in ticks, enough=point is enough)
        )
    about = "off or on"
    if curve.axis is not None:
        scale = (
            "not to scale"
            if even
            else "logarithmic scale"
            if curve.axis.spacing == "geometric"
            else "linear scale"
        )
        about = f"{curve.axis.meaning}, {scale}; stronger to the right →"
    undefended, chance = sweep.undefended.accuracy, sweep.task.chance if sweep.task else None
    worst = ", ".join(
        f"{short(p.strength)}: {percent(p.worst)} (ceiling {ceiling_of(p)})" for p in curve.points
    )
    return Plot(
        marks,
        _height(sweep.keep_under),
        (
            f"Largest leakage of any sample without defense: {percent(sweep.undefended.worst)}; "
            f"with {curve.name} at {worst}."
        ),
        {name: _path(marks[1:], name) for name in ("worst", "mean", "accuracy")},
        axis=f"{curve.name}: {about}",
        ruins=enough is not None and sweep.ruins(enough),
        proven=enough is not None and enough.proven(sweep.keep_under),
        accuracy_ticks=tuple(
            (_height(i / 2, 1.0, _ACCURACY), f"{100 * top * i / 2:.0f} %") for i in range(3)
        ),
        undefended=_height(undefended.mean, top, _ACCURACY) if undefended else None,
        chance=_height(chance, top, _ACCURACY) if chance is not None else None,
    )


def plot_side_by_side(points: list[Point], labels: list[str], level: float) -> Plot:
    """Several defenses beside each other, none of them stronger or weaker than the next: dots
    without lines."""
    first, last = _NONE + 16, _LAST - 16
    step = (last - first) / max(len(points) - 1, 1)
    named = list(zip(points, labels, strict=True))
    worst = ", ".join(
        f"{label} {percent(point.worst)} (ceiling {ceiling_of(point)})" for point, label in named
    )
    most = max(len(point.samples) for point in points)
    return Plot(
        [_mark(point, first + step * i, label, 1.0) for i, (point, label) in enumerate(named)],
        _height(level),
        f"Largest leakage of any sample: {worst}.",
        {"worst": "", "mean": ""},
        height=HEIGHT - _BELOW,
        apart=min(_SPREAD / most, 7.0, 0.8 * step / most) if most else 0.0,
        half=round(min(36.0, 0.44 * step), 1),
    )


def _places(curve: Curve) -> list[float]:
    """Where the strengths stand: by their logarithm where they are spaced by a factor, the weakest
    always at the left."""
    values = [1.0 if point.strength is None else point.strength for point in curve.points]
    if curve.axis is not None and curve.axis.spacing == "geometric" and min(values) > 0:
        values = [math.log(value) for value in values]
    first, last = values[0], values[-1]
    if first == last:
        return [(_FIRST + _LAST) / 2 for _ in values]
    return [_FIRST + (_LAST - _FIRST) * (value - first) / (last - first) for value in values]


def _ticks(places: list[float], first: int) -> set[float]:
    """Which places get their number written below: the most important one, then all that do not run
    into another."""
    chosen = {places[first]}
    for place in places:
        if all(abs(place - other) >= _CLOSE for other in chosen):
            chosen.add(place)
    return chosen


def _mark(
    point: Point, x: float, label: str, top: float, *, tick: bool = True, enough: bool = False
) -> Mark:
    accuracy = point.accuracy
    learned = f", accuracy {percent(accuracy.mean)}" if accuracy else ""
    hint = (
        f"{point.defenses}: largest found {percent(point.worst)}, ceiling "
        f"{ceiling_of(point)}{learned}"
    )
    samples = [_height(row.leakage) for row in point.samples if row.leakage == row.leakage]
    worst, mean = (None if point.refused else _height(value) for value in (point.worst, point.mean))
    trained = (accuracy.mean, accuracy.low, accuracy.high) if accuracy else (None, None, None)
    learned_at, low, high = (
        None if value is None else _height(value, top, _ACCURACY) for value in trained
    )
    top_end = None if math.isnan(point.known_ceiling) else _height(point.known_ceiling)
    return Mark(
        round(x, 1), label, tick, hint, samples, worst, mean, learned_at, low, high, enough, top_end
    )


def _path(marks: list[Mark], name: str) -> str:
    """An SVG path through the marks, broken where one was not measured."""
    commands, connected = [], False
    for mark in marks:
        y = getattr(mark, name)
        if y is not None:
            commands.append(f"{'L' if connected else 'M'}{mark.x} {y}")
        connected = y is not None
    return " ".join(commands)
