"""What a person sees while cells are measured: a bar with the time that is left, or a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LINE_EVERY = 15.0  # seconds, in a log


@dataclass
class Shown:
    """`begin` names the cell under way, `done` counts one that has finished; the rest follows from the clock."""

    console: Console
    total: int
    bars: Progress | None = None
    finished: int = 0
    _start: float = field(default_factory=time.monotonic)
    _last: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.bars is not None:
            self._task = self.bars.add_task("Starting", total=self.total)

    def begin(self, what: str) -> None:
        if self.bars is not None:
            self.bars.update(self._task, description=what)

    def done(self, what: str, sentence: str = "") -> None:
        """One more; a sentence about it stays on the screen."""
        self.finished += 1
        if sentence:
            self.console.print(f"unsum: {what}: {sentence}", markup=False, highlight=False, soft_wrap=True)
        if self.bars is not None:
            self.bars.update(self._task, completed=self.finished)
        elif time.monotonic() - self._last > _LINE_EVERY or self.finished == self.total:
            self._last = time.monotonic()
            self.console.print(f"unsum: {self.sentence()}", markup=False, highlight=False)

    def sentence(self) -> str:
        elapsed = time.monotonic() - self._start
        left = elapsed / max(self.finished, 1) * (self.total - self.finished)
        return f"{self.finished} of {self.total} cells, about {duration(left)} left"


def duration(seconds: float) -> str:
    """In the largest unit that fits.

    >>> duration(40), duration(400), duration(9000)
    ('40 s', '7 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def shown(console: Console, total: int) -> Iterator[Shown]:
    if not console.is_terminal:
        yield Shown(console, total)
        return
    columns = (
        *(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        ),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=600) as bars:
        yield Shown(console, total, bars)
