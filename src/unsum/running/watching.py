"""Who is told how far a call has come, where the caller does not say: a bar in a notebook, a line
at a prompt, else nobody."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from html import escape
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from unsum.running.deadline import is_interactive
from unsum.running.progress import SILENT, Looking, OneLine, Progress
from unsum.showing.wording import plain

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
_EVERY = 0.2  # seconds between two drawings of a bar
_BARS: ContextVar[bool] = ContextVar(
    "_BARS", default=False
)  # that are shown: calls inside another's have none of their own


def in_notebook() -> bool:
    """Whether IPython runs this for a notebook, which shows HTML; at its prompt in a terminal it
    does not."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class NotebookBar(Progress):
    """The stage, how much of it is done where that is known, and what a search is at; it is gone
    when the call returns."""

    def __init__(self) -> None:
        shown: Any = import_module("IPython.display")  # there, where this is made
        self._html: Callable[[str], Any] = shown.HTML
        self._handle: Any = shown.display(shown.HTML(""), display_id=True)
        self._stage, self._about, self._share = "Starting", "", float("nan")
        self._drawn, self._start = 0.0, time.monotonic()

    def say(self, sentence: str) -> None:
        self._stage, self._about = sentence, ""
        self._draw(now=True)

    def step(self, number: int, *losses: float) -> None:
        self._about = f"step {number}: {' '.join(f'{loss:.1e}' for loss in losses)}"
        self._draw()

    def part(self, done: int, total: int) -> None:
        self._share, self._about = done / max(total, 1), f"{done} of {total}"
        self._draw(now=True)

    def looking(self, state: Looking) -> None:
        self._about = str(state)
        self._draw()

    def end(self) -> None:
        self._handle.update(self._html(""))

    def _draw(self, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._drawn < _EVERY:
            return
        self._drawn = time.monotonic()
        done = f'value="{self._share:.3f}"' if self._share == self._share else ""
        words = ", ".join(
            filter(None, [self._stage, self._about, f"{self._drawn - self._start:.0f} s"])
        )
        text = escape(plain(f"unsum: {words}"))
        self._handle.update(
            self._html(
                f'<progress max="1" {done} aria-label="{text}"></progress> <span>{text}</span>'
            )
        )


@contextmanager
def watched(progress: Progress, *, prompt: bool = True) -> Iterator[Progress]:
    """`progress`, or what a person at a notebook, or at a prompt, sees where nothing else was asked
    for."""
    if progress is not SILENT:
        yield progress
    elif _BARS.get():
        yield SILENT
    elif in_notebook():
        bar, token = NotebookBar(), _BARS.set(True)
        try:
            yield bar
        finally:
            _BARS.reset(token)
            bar.end()
    else:
        yield OneLine() if prompt and is_interactive() else progress


def shown_in_notebooks(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """The same with a bar in a notebook, unless the caller gives a `progress`; elsewhere it is as
    silent as ever."""

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        if kwargs.get("progress", SILENT) is not SILENT:
            return function(*args, **kwargs)
        with watched(SILENT, prompt=False) as progress:
            kwargs["progress"] = progress
            return function(*args, **kwargs)

    return called
