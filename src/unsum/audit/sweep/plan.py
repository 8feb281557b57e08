"""Which strengths of a defense to try, from what the user wrote: `noise=1e-5..1e-1/6`, `clip=4,1,0.25` or `sign`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from unsum.defend import DEFENSES, Defense
from unsum.defend.defense import Axis, Switch, has_strength
from unsum.errors import UnsumError

DEFAULT_STEPS = 6  # strengths from one end to the other, where nobody says otherwise
MOST_STEPS = 24  # strengths of one defense: a budget


@dataclass(frozen=True)
class Strengths:
    """One defense at several strengths, the weakest first; a switch has no axis and one state to try."""

    name: str
    axis: Axis | None
    defenses: list[Defense]


def plan(text: str) -> Strengths:
    """Read one `--sweep`.

    >>> plan("noise=1e-4..1e-1/4").defenses
    [Noise(0.0001), Noise(0.001), Noise(0.01), Noise(0.1)]
    >>> plan("clip=0.5,4").defenses
    [Clip(4), Clip(0.5)]
    """
    name, equals, wanted = (part.strip() for part in text.partition("="))
    kind = DEFENSES[name]
    if not has_strength(kind):
        if equals:
            raise UnsumError(f"The sweep {text!r} cannot be read: {name!r} is on or off; write it as {name!r}.")
        return Strengths(name, None, [cast("type[Switch]", kind)()])
    if not wanted:
        raise _unreadable(text, "its strengths are missing", name)
    strengths = _range(text, name, wanted, kind.axis) if ".." in wanted else _listed(text, name, wanted)
    weakest_first = sorted(set(strengths), reverse=not kind.axis.rising)
    return Strengths(name, kind.axis, [kind(strength) for strength in weakest_first])


def _listed(text: str, name: str, wanted: str) -> list[float]:
    strengths = [_number(text, name, part) for part in wanted.split(",")]
    if len(strengths) > MOST_STEPS:
        raise UnsumError(f"The sweep {text!r} has {len(strengths)} strengths; try at most {MOST_STEPS} at a time.")
    return strengths


def _range(text: str, name: str, wanted: str, axis: Axis) -> list[float]:
    bounds, slash, count = wanted.partition("/")
    low_text, _, high_text = bounds.partition("..")
    low, high = _number(text, name, low_text), _number(text, name, high_text)
    steps = _steps(text, count) if slash else DEFAULT_STEPS
    if not low < high:
        raise UnsumError(f"The sweep {text!r} cannot be read: write the smaller number first, LOW..HIGH.")
    if axis.spacing == "geometric" and low <= 0:
        raise UnsumError(
            f"The strengths of {name!r} are spaced by a factor, so a range of them must start above 0, not at {low:g}; "
            "no defense at all is tried in any case."
        )
    places = [i / (steps - 1) for i in range(steps)]
    if axis.spacing == "geometric":
        between = [low * (high / low) ** place for place in places]
    else:
        between = [low + (high - low) * place for place in places]
    if axis.whole:
        return [float(round(value)) for value in between]
    # Three digits are enough to choose by, and can be typed again; the bounds stay as they were written.
    return [low, *(float(f"{value:.3g}") for value in between[1:-1]), high]


def _steps(text: str, count: str) -> int:
    try:
        steps = int(count)
    except ValueError:
        steps = 0
    if not 2 <= steps <= MOST_STEPS:
        raise UnsumError(
            f"The sweep {text!r} cannot be read: after the slash comes a whole number of strengths from 2 to {MOST_STEPS}."
        )
    return steps


def _number(text: str, name: str, part: str) -> float:
    try:
        value = float(part)
    except ValueError:
        raise _unreadable(text, f"{part.strip()!r} is not a number", name) from None
    if not math.isfinite(value):
        raise _unreadable(text, f"{part.strip()!r} is not a finite number", name)
    return value


def _unreadable(text: str, reason: str, name: str) -> UnsumError:
    example = DEFENSES[name].example
    low, high = (2, 16) if DEFENSES[name].axis.whole else (example / 100, example)
    return UnsumError(
        f"The sweep {text!r} cannot be read: {reason}; write it as '{name}={low:g}..{high:g}' or '{name}={low:g},{high:g}'."
    )
