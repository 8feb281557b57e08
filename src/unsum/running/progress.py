"""What a person is told while something runs: the stage that begins, and how far a method that
iterates has come."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Looking:
    """What a search is at.

    >>> print(
    ...     Looking(
    ...         "the start 'labels'",
    ...         done=3,
    ...         total=9,
    ...         best="30 deviations off",
    ...         part="further steps",
    ...         seconds=4,
    ...         limit=60,
    ...     )
    ... )
    trying the start 'labels' (3 of 9), best so far 30 deviations off; 4 of 60 s
    >>> print(Looking("", part="samples one at a time", seconds=4))
    trying samples one at a time; 4 s
    """

    what: str
    done: int = 0
    total: int = 0
    best: str = ""  # how near the best answer so far comes
    part: str = ""  # what the search would leave out if it ended now
    seconds: float = 0.0
    limit: float | None = None

    def __str__(self) -> str:
        place = f" ({self.done} of {self.total})" if self.total else ""
        best = f", best so far {self.best}" if self.best else ""
        limit = "" if self.limit is None else f" of {self.limit:g}"
        return f"trying {self.what or self.part}{place}{best}; {self.seconds:.0f}{limit} s"


class Progress:
    """One meaning from the command line to the solver. This one tells nobody: inherit, and override
    what you want to hear."""

    def say(self, sentence: str) -> None:
        """A new stage begins."""

    def step(self, number: int, *losses: float) -> None:
        """A method that iterates has taken `number` steps, and these are its losses."""

    def part(self, done: int, total: int) -> None:
        """So many of several equal parts, the strengths of a sweep say, are done."""

    def looking(self, state: Looking) -> None:
        """A search that has run for two seconds is at this; told every second."""


class OneLine(Progress):
    """The last thing that was said, on one line that replaces itself: for notebooks and prompts,
    from the third second on."""

    def __init__(self) -> None:
        self._stage, self._shown = "", 0

    def say(self, sentence: str) -> None:
        self._stage = f"{sentence}: "
        self._show("")

    def looking(self, state: Looking) -> None:
        self._show(f"unsum: {self._stage}{state}")

    def _show(self, line: str) -> None:
        if line or self._shown:
            print(
                "\r" + line.ljust(self._shown),
                end="" if line else "\r",
                file=sys.stderr,
                flush=True,
            )
        self._shown = len(line)


SILENT = Progress()
