"""The search for all samples: rounds of starts until each sample was found twice.

A `Hunt` proposes starts in batches, descends, and keeps what they ended in. A sample in which two
starts ended is confirmed. The search ends when all are confirmed, or where further rounds bring
nothing new (`Budget`: rounds, barren, idle), or with the time of the attack.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from unsum.engine.budget import Budget
from unsum.engine.found import FoundPoints
from unsum.running.deadline import out_of_time
from unsum.running.progress import Progress

Found = TypeVar("Found", bound=FoundPoints)


@dataclass
class Hunt(ABC, Generic[Found]):
    """A search for `wanted` samples."""

    wanted: int
    budget: Budget
    untried: str  # what is left out when the time is over
    progress: Progress

    @abstractmethod
    def round(self, found: Found, barren: int) -> Found:
        """What a batch of starts ended in, after so many rounds in a row without a gain."""

    def joined(self, found: Found, new: Found) -> Found:
        """Both, each point once."""
        return found.joined(new, self.budget.same, self.budget.blur)

    def number(self, found: Found) -> int:
        """How many of the points are samples."""
        return len(found)

    def gains(self, found: Found) -> Any:
        """What a round must raise to be a gain."""
        return self.number(found), found.twice

    def complete(self, found: Found) -> bool:
        return self.number(found) >= self.wanted and found.twice == len(found)

    def ended(self, barren: int, idle: float) -> bool:
        """Whether so many rounds, or seconds of computing, without a gain are the end."""
        return barren >= self.budget.barren or idle >= self.budget.patient_seconds

    def deflate(self, found: Found, *, gained: bool) -> None:  # noqa: ARG002
        """Take what was found out of the problem, where that makes the rest easier to find."""
        return

    def run(self, found: Found) -> Found:
        """All that was found, `found` included."""
        barren, last = 0, time.thread_time()
        for _ in range(self.budget.rounds):
            if self.ended(barren, time.thread_time() - last) or out_of_time(self.untried):
                break
            before = self.gains(found)
            found = self.joined(found, self.round(found, barren))
            if self.complete(found):
                break
            gained = self.gains(found) > before
            if gained:
                barren, last = 0, time.thread_time()
            else:
                barren += 1
            self.deflate(found, gained=gained)
            self.progress.part(min(self.number(found), self.wanted), self.wanted)
        return found
