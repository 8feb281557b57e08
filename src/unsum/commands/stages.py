"""What a person at a terminal sees while an attack runs: the stage, and a bar with the losses of
methods that iterate."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from unsum.running.progress import Looking, Progress

# stdout has results alone: --json can be piped
PROGRESS = Console(stderr=True, markup=False, highlight=False)
OUT = Console(markup=False, highlight=False)
LINE_EVERY = 5.0  # seconds, where there is no terminal to draw a bar on


def say(sentence: str, style: str | None = None) -> None:
    """A sentence beside the results."""
    PROGRESS.print(f"unsum: {sentence}", style=style, soft_wrap=True)


@contextmanager
def loading() -> Iterator[None]:
    """A sign of life while PyTorch, which takes seconds, is imported."""
    # PyTorch's own forward-mode derivatives call what PyTorch deprecates; no user can change that.
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)
    if "torch" in sys.modules:
        yield
    elif PROGRESS.is_terminal:
        with PROGRESS.status("Loading PyTorch"):
            yield
    else:
        say("loading PyTorch")
        yield


class Stages(Progress):
    """Stages as they begin, and bars for steps and parts. A log has a line for every stage, and for
    steps now and then."""

    def __init__(self, bars: Bars, total: int | None) -> None:
        self._bars, self._total = bars, total
        self._said = time.monotonic()
        self._parts: tuple[int, int] | None = None
        self._task = bars.add_task("Starting", total=None, losses="")

    def say(self, sentence: str) -> None:
        if self._bars.disable:
            self._line(sentence)
        self._bars.reset(self._task, total=None, description=sentence, losses="")
        self._show_parts()

    def step(self, number: int, *losses: float) -> None:
        shown = f"step {number}: {' '.join(f'{loss:.1e}' for loss in losses)}"
        self._bars.update(self._task, completed=number, total=self._total, losses=shown)
        if self._bars.disable and time.monotonic() - self._said > LINE_EVERY:
            self._line(
                shown if self._total is None else shown.replace(":", f" of {self._total}:", 1)
            )

    def looking(self, state: Looking) -> None:
        self._bars.update(self._task, losses=str(state))
        if self._bars.disable and time.monotonic() - self._said > LINE_EVERY:
            self._line(str(state))

    def part(self, done: int, total: int) -> None:
        """The bar stays while `say` names the next."""
        self._parts = (done, total)
        self._show_parts()
        if self._bars.disable and time.monotonic() - self._said > LINE_EVERY:
            self._line(f"{done} of {total} done")

    def _line(self, sentence: str) -> None:
        self._said = time.monotonic()
        self._bars.console.print(
            f"unsum: {sentence}", markup=False, highlight=False, soft_wrap=True
        )

    def _show_parts(self) -> None:
        if self._parts is not None:
            done, total = self._parts
            self._bars.update(self._task, completed=done, total=total, losses=f"{done} of {total}")


@contextmanager
def stages(total: int | None = None, console: Console = PROGRESS) -> Iterator[Stages]:
    """Stages on `console`; `total` is how many steps an iteration will take, where that is
    known."""
    columns = (
        *(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20)),
        *(TextColumn("{task.fields[losses]}"), TimeElapsedColumn()),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield Stages(bars, total)
