"""The defenses that the page offers, each with the strengths that its slider stops at, the weakest first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import cast

from unsum.defend import DEFENSES, Defense
from unsum.defend.axis import Axis
from unsum.defend.defense import Switch, has_strength
from unsum.errors import UnsumError, unknown_name

STOPS = 25
# Weakest and strongest, wide enough to see the leak come and go on the embedded model. Not here: `dp`, which refuses its
# BatchNorm; `secagg`, which needs other clients' updates; `soteria`, whose many backward passes are too slow to watch.
_ENDS = {
    "noise": (1e-6, 1.0),
    "laplace": (1e-6, 1.0),
    "clip": (100.0, 1e-3),
    "clip-layers": (10.0, 1e-3),
    "prune": (0.0, 0.99),
    "prune-global": (0.0, 0.99),
    "smooth": (0.0, 0.9),
    "mixup": (0.01, 10.0),
    "qsgd": (65536.0, 1.0),
    "quantize": (24.0, 2.0),
}


@dataclass(frozen=True)
class Offer:
    """One line of the menu; a switch has no strengths. A request names a stop, so no other number reaches a defense."""

    name: str
    summary: str
    meaning: str
    strengths: list[float]

    def at(self, stop: int) -> Defense:
        kind = DEFENSES[self.name]
        if not self.strengths:
            return cast("type[Switch]", kind)()
        if not 0 <= stop < len(self.strengths):
            raise UnsumError(f"The strength of {self.name!r} is one of {len(self.strengths)} stops, counted from 0.")
        return kind(self.strengths[stop])


@cache
def menu() -> dict[str, Offer]:
    """Name → offer, in the order of `unsum list`."""
    offers = {}
    for entry in DEFENSES:
        if not has_strength(entry.method):
            offers[entry.name] = Offer(entry.name, entry.summary, "", [])
        elif entry.name in _ENDS:
            axis = entry.method.axis
            offers[entry.name] = Offer(entry.name, entry.summary, axis.meaning, stops(axis, *_ENDS[entry.name]))
    return offers


def offer(name: str) -> Offer:
    if name not in menu():
        raise unknown_name("defense on this page", name, menu())
    return menu()[name]


def stops(axis: Axis, weakest: float, strongest: float) -> list[float]:
    """Evenly spaced as the axis wants it, in numbers short enough to be read and typed again.

    >>> stops(Axis("bits", spacing="linear", rising=False, whole=True), 4, 2)
    [4.0, 3.0, 2.0]
    """
    places = [i / (STOPS - 1) for i in range(STOPS)]
    if axis.spacing == "geometric":
        values = [float(f"{weakest * (strongest / weakest) ** place:.2g}") for place in places]
    else:
        values = [round(weakest + (strongest - weakest) * place, 2) for place in places]
    if axis.whole:
        values = [float(round(value)) for value in values]
    return sorted(set(values), reverse=strongest < weakest)
