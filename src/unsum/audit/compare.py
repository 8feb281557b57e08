"""The same round under other defenses, by the same attack: what an audit adds to its answer where
that costs little.

Where no usual defense keeps every sample under the level and the labels unread, noise climbs a
short ladder until it does. Where no row is proven by then, a clip with noise is added that proves
it for any data; what is under the level is priced by a small training. Settings that nobody can
decide about are not under it. Every row has its ceiling: what keeps the attacks tried out proves
nothing by itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from unsum.attack.options import AUTO
from unsum.audit.bounds import Bounds, proven_chain
from unsum.audit.ceiling_words import stands_at
from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.round import Round
from unsum.audit.sweep.bench import Bench, Point, shown
from unsum.audit.sweep.task import photo_tiles, ruins
from unsum.audit.wording import percent
from unsum.ceiling.result import Ceiling
from unsum.defend import Defense, Noise, parse_defense
from unsum.running.deadline import out_of_time

# One of each common kind, at a usual strength. Not noise: it keeps the attack busy for longer than
# all of these together.
STANDARD = ("clip:1", "prune:0.9", "sign")
# Noise on every entry, times the last layer's gradient: 10 times still gave parts of the embedded
# photos away, 30 times did not.
LADDER = (10.0, 30.0, 100.0, 1000.0)
# seconds after which the ladder is climbed no further, and that one attack on it may take
PATIENCE = 60.0
# seconds; a round that took longer is tried under other defenses only when that is asked for
LITTLE = 10.0
CAPTURED = (
    "The update was captured elsewhere; without the client's samples, no other defense can be "
    "tried on them."
)
NOT_ASKED = "It was not asked for (--compare, or compare=True, adds it)."
SLOW = (
    "The attack on this round takes long, and once more for every defense; --compare tries them "
    "all the same."
)
INTERRUPTED = "The audit was interrupted before other defenses were tried."
Tried = tuple[list[Defense], Point]

_UNPRICED = "Measured only where every sample stays under the level, and without any defense."


@dataclass(frozen=True)
class Comparison:
    """`points`: the round without defense, as audited, and under each other defense alone; `absent`
    says why not."""

    points: list[Point] = field(default_factory=list)
    absent: str = NOT_ASKED
    audited_second: bool = False  # after the round without defense; else the two are one
    chance: float = 0.0  # the accuracy of guessing, in the training that prices a defense
    stopped: str = ""  # why stronger noise was not tried

    def label(self, i: int) -> str:
        """How point `i` is called; the audited one is marked where it is not the one without
        defense."""
        name = "no defense" if self.points[i].defenses == "none" else self.points[i].defenses
        return f"{name} (audited)" if i == 1 and self.audited_second else name

    @property
    def answer(self) -> str:
        """Which of these settings keep every sample under the level, and what each costs."""
        return " ".join(self.answers)

    @property
    def answers(self) -> list[str]:
        """The answer, one setting after the other: those that are proven first."""
        if not self.points:
            return []
        level, under = (
            percent(DEFAULT_LEVEL),
            [point for point in self.points if point.under(DEFAULT_LEVEL)],
        )
        proven = [point for point in self.points if point.proven(DEFAULT_LEVEL)]
        said = [
            (
                f"Proven: under {point.defenses} nobody reads {level} of any "
                f"sample{_but_labels(point)}. {self._cost(point)}"
            )
            for point in proven
        ]
        if self.points[0] in under and self.points[0] not in proven:
            already = (
                f"Without any defense, no attack tried reads {level} of a "
                f"sample{_but_labels(self.points[0])}"
            )
            return [*said, f"{already}; that is not proven."]
        unproven = [
            f"Unproven: the attacks tried read less than {level} under {point.defenses}, where "
            f"{stands_at(point)}{_but_labels(point)}. {self._cost(point)}"
            for point in under
            if point not in proven
        ]
        none = (
            f"None of {'the others' if said else 'these'} keeps every sample under "
            f"{level}{self.stopped}."
        )
        return [*said, *(unproven or [none])]

    def _cost(self, point: Point) -> str:
        before, after = self.points[0].accuracy, point.accuracy
        if before is None or after is None:
            reason = point.untrained or self.points[0].untrained
            return f"What that costs in accuracy was not measured ({reason.rstrip('.')})."
        lost = (
            f"small network learns to {percent(after.mean)} accuracy under it instead of "
            f"{percent(before.mean)}."
        )
        return f"It ruins the model: a {lost}" if ruins(before, after, self.chance) else f"A {lost}"

    def to_dict(self) -> dict[str, Any]:
        points = [point.to_dict() for point in self.points]
        return {"points": points, "absent": self.absent or None, "answer": self.answer or None}


def _but_labels(point: Point) -> str:
    """What a setting gives away whose samples stay under the level."""
    if point.labels is None or not point.labels_read:
        return ""
    return f", but {point.labels.right} of {point.labels.total} labels were read"


def keeps_everything(point: Point) -> bool:
    """Whether the attacks tried read neither samples nor labels."""
    return point.under(DEFAULT_LEVEL) and not point.labels_read


def compare(
    played: Round,
    bench: Bench,
    chain: list[Defense],
    wanted: bool | None,
    bounds: Bounds | None = None,
    own: Ceiling | None = None,
) -> Comparison:
    """`wanted` None compares where it costs little: by the usual attack, on a round that did not
    take long.

    `bounds` give the ceiling of every row; without them there is none. `own` is that of the audited
    round.
    """
    if wanted is False:
        return Comparison(absent=NOT_ASKED)
    options = bench.options
    iterates = options.method != AUTO or options.refine is not None
    if wanted is None and (played.leak.seconds > LITTLE or iterates):
        return Comparison(absent=SLOW)
    if out_of_time("other defenses"):  # interrupted: whoever waits wants what there is
        return Comparison(absent=INTERRUPTED)
    tried: list[Tried] = [(chain, bench.point(played, chain))]
    if chain:
        tried.insert(0, ([], bench.defended([], None)))
    standard: list[list[Defense]] = [[parse_defense(text)] for text in STANDARD]
    tried += [
        (other, bench.defended(other, None)) for other in standard if shown(other) != shown(chain)
    ]
    stopped, climbed = "", list[Tried]()
    quick = replace(options, time_limit=min(PATIENCE, options.time_limit or PATIENCE))
    if not any(keeps_everything(point) for _, point in tried):
        climbed, stopped = _climb(replace(bench, options=quick), audited=chain)
        tried += climbed
    if bounds is not None:
        tried = [
            (other, replace(point, **bounds.figures(other, own if other is chain else None)))
            for other, point in tried
        ]
        if not any(point.proven(DEFAULT_LEVEL) for _, point in tried):
            proof = proven_chain(bench.size(), discrete=bounds.case.discrete)
            figures = bounds.figures(proof)
            if climbed or figures["ceiling"] < DEFAULT_LEVEL:
                point = replace(bench, options=quick).defended(proof, None)
                tried.append((proof, replace(point, **figures)))
    pictures = photo_tiles()
    pricing = replace(bench, pictures=pictures)
    under = [point.under(DEFAULT_LEVEL) or point.proven(DEFAULT_LEVEL) for _, point in tried]
    under[0] = not under[0] and any(under)  # where nothing is to be defended, nothing is to be paid
    priced = [
        replace(point, **(pricing.trained(other) if wanted_price else {"untrained": _UNPRICED}))
        for (other, point), wanted_price in zip(tried, under, strict=True)
    ]
    return Comparison(
        priced, "", audited_second=bool(chain), chance=pictures.chance, stopped=stopped
    )


def _climb(bench: Bench, audited: list[Defense]) -> tuple[list[Tried], str]:
    """Noise, stronger and stronger until samples and labels are kept; and why it ended before, if
    it did.

    The noise that was audited did not keep them, and is not tried again.
    """
    start, own, tried = time.perf_counter(), bench.head_size(), list[Tried]()
    for times in LADDER if own > 0 else ():
        noise = Noise(float(f"{times * own:.0e}"))
        if shown([noise]) == shown(audited):
            continue
        tried.append(([noise], bench.defended([noise], noise.strength)))
        if keeps_everything(tried[-1][1]):
            break
        if tried[-1][1].refused:  # and stronger noise decides no more than this
            return tried, f", as far as that can be decided: {tried[-1][1].refused.rstrip('.')}"
        if time.perf_counter() - start > PATIENCE:
            return tried, f"; there was no time to try noise stronger than {tried[-1][1].defenses}"
    return tried, ""
