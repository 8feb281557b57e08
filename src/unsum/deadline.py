"""A time limit that searches keep themselves: they ask now and then whether it is over, and give what they have.

    with time_limit(5.0) as deadline:
        …                       # searches inside call `out_of_time()`, however deep they are
    if deadline.cut:            # what was left untried, in words

Without a limit, or outside of one, time is never over. Limits inside each other end with the earliest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from unsum.declared import check_positive


@dataclass(frozen=True)
class Deadline:
    """When time is over, and which searches that cut short, in the order in which they noticed."""

    end: float
    cut: list[str] = field(default_factory=list)


_CURRENT: ContextVar[Deadline | None] = ContextVar("unsum-deadline", default=None)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[Deadline]:
    """Give the searches inside so many seconds from now on; None gives them what is left of the limit around, if there is one."""
    outer = _CURRENT.get()
    end = float("inf") if outer is None else outer.end
    if seconds is not None:
        check_positive("The time limit", seconds)
        end = min(end, time.monotonic() + seconds)
    deadline = Deadline(end)
    token = _CURRENT.set(deadline)
    try:
        yield deadline
    finally:
        _CURRENT.reset(token)
        if outer is not None:
            outer.cut.extend(what for what in deadline.cut if what not in outer.cut)


def out_of_time(untried: str) -> bool:
    """Whether the search must end here; `untried` says what it leaves out if so."""
    deadline = _CURRENT.get()
    if deadline is None or time.monotonic() < deadline.end:
        return False
    if untried not in deadline.cut:
        deadline.cut.append(untried)
    return True
