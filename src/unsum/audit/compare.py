"""The same round under other defenses, by the same attack: what an audit adds to its answer where that costs little."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from unsum.attack.options import AUTO, AttackOptions
from unsum.audit.point import Point
from unsum.audit.round import Round
from unsum.audit.sweep.bench import Bench
from unsum.data import Batch
from unsum.defend import Defense, parse_defense
from unsum.progress import Progress

# One of each common kind, at a usual strength. Not noise: it keeps the attack busy for longer than all of these together.
STANDARD = ("clip:1", "prune:0.9", "sign")
LITTLE = 10.0  # seconds; a round that took longer is tried under other defenses only when that is asked for
CAPTURED = "The update was captured elsewhere; without the client's samples, no other defense can be tried on them."
NOT_ASKED = "It was not asked for (--compare, or compare=True, adds it)."
SLOW = "The attack on this round takes long, and once more for every defense; --compare tries them all the same."


@dataclass(frozen=True)
class Comparison:
    """`points`: the round without defense, as audited, and under each standard defense alone; `absent` says why not."""

    points: list[Point] = field(default_factory=list)
    absent: str = NOT_ASKED
    audited_second: bool = False  # after the round without defense; else the two are one

    def label(self, i: int) -> str:
        """How point `i` is called; the audited one is marked where it is not the one without defense."""
        name = "no defense" if self.points[i].defenses == "none" else self.points[i].defenses
        return f"{name} (audited)" if i == 1 and self.audited_second else name

    def to_dict(self) -> dict[str, Any]:
        return {"points": [point.to_dict() for point in self.points], "absent": self.absent or None}


def compare(
    played: Round,
    model: nn.Module,
    batch: Batch,
    chain: list[Defense],
    options: AttackOptions,
    progress: Progress,
    *,
    train: bool,
    wanted: bool | None,
) -> Comparison:
    """`wanted` None compares where it costs little: by the usual attack, on a round that did not take long."""
    if wanted is False:
        return Comparison(absent=NOT_ASKED)
    iterates = options.method != AUTO or options.refine is not None
    if wanted is None and (played.leak.seconds > LITTLE or iterates):
        return Comparison(absent=SLOW)
    bench = Bench(model, batch, options, progress, client_trains=train)
    points = [bench.point(played, chain)]
    if chain:
        points.insert(0, bench.defended([], None))
    standard = [parse_defense(text) for text in STANDARD]
    points += [bench.defended([defense], None) for defense in standard if [repr(defense)] != [repr(d) for d in chain]]
    return Comparison(points, "", audited_second=bool(chain))
