"""A time limit that searches keep themselves: they ask now and then whether it is over, and give
what they have.

    with time_limit(5.0) as deadline:
        …                       # searches inside call `out_of_time()`, however deep they are
    if deadline.cut:            # what was left untried, in words

Outside of a limit time is never over. Limits inside each other end with the earliest. Whoever says
nothing gets what is left of the limit around or, where there is none, the default; `math.inf`
seconds are without end. Ctrl-C ends a search the same way inside `interruptible()` and in
interactive sessions; a second one quits. A search that asks is also one that can be watched:
whoever the limit's `progress` is hears every second what is tried and how far it has come.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import FrameType

from unsum.notes import Code, Note
from unsum.running.declared import check_positive
from unsum.running.progress import SILENT, Looking, Progress

DEFAULT_LIMIT = 60.0  # seconds for a search that a person waits for, unless they say otherwise
_QUIET = 2.0  # seconds that a search runs before it says anything
_EVERY = 1.0  # seconds between two reports


@dataclass
class Watched:
    """Who is told of a search, and what was told last."""

    progress: Progress
    start: float
    told: float
    state: Looking


@dataclass(frozen=True)
class Deadline:
    """When time is over, and which searches that cut short, in the order in which they noticed."""

    end: float
    cut: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)  # set by Ctrl-C
    armed: bool = False  # whether searches inside may take Ctrl-C for their own
    watch: Watched | None = None
    limited: bool = True  # whether anybody said how long, be it without end

    @property
    def over(self) -> Note:
        """What cut the search short, and what that left out, as the beginning of a sentence."""
        why = "the search was interrupted" if self.stop.is_set() else "time was over"
        return Note(f"{why}; left untried: {', '.join(self.cut)}", Code.CUT_SHORT)

    @property
    def sentence(self) -> Note:
        return Note(f"{self.over[0].upper()}{self.over[1:]}.", Code.CUT_SHORT)


_CURRENT: ContextVar[Deadline | None] = ContextVar("unsum-deadline", default=None)


@contextmanager
def time_limit(
    seconds: float | None, progress: Progress = SILENT, *, default: float = DEFAULT_LIMIT
) -> Iterator[Deadline]:
    """Give the searches inside so many seconds from now on, `math.inf` for as long as they take.

    None gives them what is left of the limit around or, where there is none, the `default`.
    """
    outer, now = _CURRENT.get(), time.monotonic()
    if seconds is None and (outer is None or not outer.limited):
        seconds = default
    end = math.inf if outer is None else outer.end
    if seconds is not None:
        if seconds != math.inf:
            check_positive("The time limit", seconds)
        end = min(end, now + seconds)
    watch = None if outer is None else outer.watch
    told = progress if watch is None else watch.progress
    if told is not SILENT and (watch is None or seconds is not None):
        watch = Watched(told, now, now, Looking("", limit=None if seconds == math.inf else seconds))
    stop = threading.Event() if outer is None else outer.stop
    mine = is_interactive() if outer is None else outer.armed
    with (
        _within(Deadline(end, stop=stop, watch=watch), outer) as deadline,
        _taking_interrupts(stop, mine),
    ):
        yield deadline


@contextmanager
def interruptible() -> Iterator[Deadline]:
    """Let the first Ctrl-C during a search inside end it, and all that follow, with what they have;
    a second one quits."""
    outer = _CURRENT.get()
    with _within(
        replace(outer or Deadline(math.inf, limited=False), cut=[], armed=True), outer
    ) as deadline:
        yield deadline


@contextmanager
def overtime(seconds: float) -> Iterator[None]:
    """Give what costs next to nothing so many seconds, even where time is over. An interrupt ends
    it all the same."""
    outer = _CURRENT.get()
    if outer is None:
        yield
        return
    with _within(replace(outer, end=max(outer.end, time.monotonic() + seconds), cut=[]), outer):
        yield


def out_of_time(untried: str, needed: float = 0.0) -> bool:
    """Whether the search must end here; `untried` says what it leaves out if so.

    `needed` are the seconds that what comes next takes where nothing can end it: with fewer left,
    time is over already.
    """
    deadline = _CURRENT.get()
    if deadline is None:
        return False
    now = time.monotonic()
    watch = deadline.watch
    if watch is not None and now - watch.start >= _QUIET and now - watch.told >= _EVERY:
        watch.told = now
        watch.progress.looking(replace(watch.state, part=untried, seconds=now - watch.start))
    if now + needed < deadline.end and not deadline.stop.is_set():
        return False
    if untried not in deadline.cut:
        deadline.cut.append(untried)
    return True


def trying(what: str, done: int = 0, total: int = 0, best: str = "") -> None:
    """Say what the search is at: the place among several, and how near the best answer so far
    comes."""
    deadline = _CURRENT.get()
    if deadline is not None and deadline.watch is not None:
        state = deadline.watch.state
        deadline.watch.state = replace(state, what=what, done=done, total=total, best=best)


def is_interactive() -> bool:
    """Whether a person types here: a notebook or an interpreter's prompt."""
    return hasattr(sys, "ps1")


@contextmanager
def _within(deadline: Deadline, outer: Deadline | None) -> Iterator[Deadline]:
    token = _CURRENT.set(deadline)
    try:
        yield deadline
    finally:
        _CURRENT.reset(token)
        if outer is not None:
            outer.cut.extend(what for what in deadline.cut if what not in outer.cut)


@contextmanager
def _taking_interrupts(stop: threading.Event, mine: bool) -> Iterator[None]:
    """The first Ctrl-C sets `stop`; the next is whoever's it was before. Signals reach the main
    thread alone."""
    before = signal.getsignal(signal.SIGINT)
    if (
        not mine
        or not callable(before)
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            before(number, frame)
        stop.set()

    signal.signal(signal.SIGINT, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
