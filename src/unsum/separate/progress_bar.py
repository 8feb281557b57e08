"""A bar on the terminal for methods that take their time. The library itself is silent: whoever owns a terminal asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(console: Console, steps: int, title: str) -> Iterator[Callable[..., None]]:
    """A callable for `separate(..., progress=…)`: its first argument is the step reached, the rest are losses to show."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[losses]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(title, total=steps, losses="")

        def show(step: int, *losses: float) -> None:
            bars.update(task, completed=step, losses=" ".join(f"{loss:.1e}" for loss in losses))

        yield show
