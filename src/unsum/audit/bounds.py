"""Ceilings inside audits and sweeps: the same client, defenses and samples, with a time of their
own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unsum.audit.round import ClientCase
from unsum.ceiling.bound import against
from unsum.ceiling.client import Client
from unsum.ceiling.prove import MOST, Effort, Prover
from unsum.ceiling.result import Ceiling
from unsum.ceiling.simulation import Simulation
from unsum.ceiling.worst_case import distance_for, worst_case
from unsum.defend import Clip, Defense, Noise
from unsum.errors import UnsumError, first_line
from unsum.running.deadline import time_limit
from unsum.running.progress import SILENT, Progress
from unsum.showing.level import DEFAULT_LEVEL

LIMIT = 60.0  # [s] for the ceilings of one audit or sweep: as long as its attack has by default
SHORT = 10.0  # [s] for all rows of a comparison, which has no more than a figure for the batch
ROW_PAIRS = 32  # [pairs of worlds] for a row of a comparison: draws of 0 prove 15 %

NOT_PROVEN = "It was not asked for (ceiling=True, or no --no-ceiling)."
NO_TENSORS = "A ceiling needs inputs and targets that are tensors, one row a sample."
NEEDS_SAMPLES = (
    "A ceiling needs the client's samples: nobody can play a captured client in another world."
)


@dataclass(eq=False)
class Bounds:
    """The ceilings of one client under any number of defenses, within `seconds` together.

    `together` bounds the mean over the samples instead of every sample.
    """

    case: Simulation
    level: float = DEFAULT_LEVEL
    seconds: float = LIMIT
    together: bool = False
    client: Client | None = None  # instead of the one that unsum simulates
    progress: Progress = SILENT
    absent: str = field(default="", init=False)  # why there is none
    _prover: Prover = field(init=False)

    def __post_init__(self) -> None:
        effort = Effort(
            against(self.level),
            most=MOST,
            told=self.progress.part,
            labels=not self.together,
            every_label=not self.together,
        )
        if self.together:
            effort = replace(effort, together=True, decided=None, pairs=ROW_PAIRS, most=ROW_PAIRS)
        self._prover = Prover(self.case, effort=effort, client=self.client)

    @classmethod
    def of(cls, client: ClientCase, **how: object) -> Bounds:
        """Of the client that an audit plays."""
        inputs, targets = client.samples
        case = Simulation(
            client.model,
            inputs,
            targets,
            train=client.train,
            training=client.training,
            loss=client.options.loss,
            buffers=client.buffers,
            schema=client.batch.schema,
            seed=client.options.seed,
        )
        return cls(case, **how)  # type: ignore[arg-type]

    def __call__(self, chain: Sequence[Defense]) -> Ceiling | None:
        """None, with the reason in `absent`, where the client cannot be played in another world."""
        try:
            with time_limit(max(self.seconds, 1e-3)):
                found = self._prover(chain)
        except UnsumError as reason:
            self.absent = str(reason)
            return None
        except Exception as error:
            # a model may refuse samples that differ from the client's: codes beside its tables
            self.absent = (
                f"The client cannot be played in another world ({type(error).__name__}: "
                f"{first_line(error)})."
            )
            return None
        self.seconds -= found.seconds
        return found

    def figures(self, chain: Sequence[Defense], own: Ceiling | None = None) -> dict[str, Any]:
        """The largest and the mean ceiling as a point of a comparison or sweep has them; NaN where
        not measured.

        `own` is one that was measured already, of every sample.
        """
        if own is not None:
            return {"ceiling": own.highest, "ceiling_mean": own.mean}
        # Where buffers or a client of one's own may pass by the clip, the mechanism proves nothing.
        plain = self.case.training is None and not self.case.buffers and self.client is None
        mechanism = worst_case(chain, len(self.case.inputs)) if plain else None
        cap = 1.0 if mechanism is None else mechanism.cap(self.case.discrete)
        if cap < self.level:
            return {"ceiling": cap, "ceiling_mean": cap}
        found = self(chain)
        if found is None:
            return {"ceiling": math.nan, "ceiling_mean": math.nan}
        every = not self.together or bool(found.why)
        return {"ceiling": found.highest if every else math.nan, "ceiling_mean": found.mean}


def proven_chain(
    norm: float, level: float = DEFAULT_LEVEL, *, discrete: bool = False
) -> list[Defense]:
    """A clip at about the update's own norm and noise that proves every ceiling to be below the
    level, for any data; `discrete` where a part of a sample is right or wrong."""
    clip = float(f"{norm:.0e}")
    noise = 2 * clip / distance_for(level, discrete)
    digits = 10 ** math.floor(math.log10(noise))
    return [Clip(clip), Noise(math.ceil(noise / digits) * digits)]
