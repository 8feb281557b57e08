"""What a person at a terminal sees while an attack runs: the stage, and a bar with the losses of methods that iterate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from unsum.progress import Progress


class Stages(Progress):
    """Stages as they begin, and bars for steps and parts. In a log only stages appear, as lines."""

    def __init__(self, console: Console, bars: Bars | None, total: int | None) -> None:
        self._console, self._bars, self._total = console, bars, total
        self._parts: tuple[int, int] | None = None
        self._task = bars.add_task("Starting", total=None, losses="") if bars else None

    def say(self, sentence: str) -> None:
        if self._bars is None or self._task is None:
            self._console.print(f"unsum: {sentence}", markup=False, highlight=False)
        else:
            self._bars.reset(self._task, total=None, description=sentence, losses="")
            self._show_parts()

    def step(self, number: int, *losses: float) -> None:
        if self._bars is not None and self._task is not None:
            shown = " ".join(f"{loss:.1e}" for loss in losses)
            self._bars.update(self._task, completed=number, total=self._total, losses=f"step {number}: {shown}")

    def part(self, done: int, total: int) -> None:
        """The bar stays while `say` names the next."""
        self._parts = (done, total)
        self._show_parts()

    def _show_parts(self) -> None:
        if self._bars is not None and self._task is not None and self._parts is not None:
            done, total = self._parts
            self._bars.update(self._task, completed=done, total=total, losses=f"{done} of {total}")


@contextmanager
def stages(console: Console, total: int | None = None) -> Iterator[Stages]:
    """Stages on `console`; `total` is how many steps an iteration will take, where that is known."""
    if not console.is_terminal:
        yield Stages(console, None, total)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[losses]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        yield Stages(console, bars, total)
