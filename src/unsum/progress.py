"""What a person is told while something runs: the stage that begins, and how far a method that iterates has come."""

from __future__ import annotations


class Progress:
    """One meaning from the command line to the solver. This one tells nobody: inherit, and override what you want to hear."""

    def say(self, sentence: str) -> None:
        """A new stage begins."""

    def step(self, number: int, *losses: float) -> None:
        """A method that iterates has taken `number` steps, and these are its losses."""

    def part(self, done: int, total: int) -> None:
        """So many of several equal parts, the strengths of a sweep say, are done."""


SILENT = Progress()
