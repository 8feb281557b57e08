"""The runner: every cell that the store lacks, one after the other or on a Ray cluster, each
written as soon as it is there.

Tasks of a Ray cluster have this machine's cores and GPUs, or many machines'. An attack's own error
is an outcome like any other. What Ray sees fail is a worker that was lost (killed, out of memory,
its machine gone): such a cell is given to another worker, a few times. Every node needs unsum and
the files of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from unsum.errors import UnsumError
from unsum.running.cluster import connected
from unsum_bench.declare import Cell
from unsum_bench.material import Material, code_version, declaration_of, key_of
from unsum_bench.measure import Outcome, measure
from unsum_bench.origin import origin
from unsum_bench.store import Store

_LINE_EVERY = 15.0  # seconds, in a log


class Shown:
    """A bar with the time that is left, or a line now and then in a log.

    `begin` names the cell under way, `done` counts one that has finished; the rest follows from the
    clock.
    """

    def __init__(self, bars: Progress, total: int) -> None:
        self._bars, self._total, self._finished = bars, total, 0
        self._start = self._last = time.monotonic()
        self._task = bars.add_task("Starting", total=total)

    def begin(self, what: str) -> None:
        self._bars.update(self._task, description=what)

    def done(self, what: str, sentence: str = "") -> None:
        """One more; a sentence about it stays on the screen."""
        self._finished += 1
        self._bars.update(self._task, completed=self._finished)
        if sentence:
            self._say(f"{what}: {sentence}")
        now = time.monotonic()
        if self._bars.disable and (now - self._last > _LINE_EVERY or self._finished == self._total):
            self._last = now
            left = (now - self._start) / self._finished * (self._total - self._finished)
            self._say(f"{self._finished} of {self._total} cells, about {duration(left)} left")

    def _say(self, sentence: str) -> None:
        self._bars.console.print(
            f"unsum: {sentence}", markup=False, highlight=False, soft_wrap=True
        )


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
    columns = (
        *(BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left")),
        *(TimeRemainingColumn(), TextColumn("{task.description}")),
    )
    hidden = not console.is_terminal
    with Progress(
        *columns, console=console, transient=True, speed_estimate_period=600, disable=hidden
    ) as bars:
        yield Shown(bars, total)


Answers = Iterator[tuple[Cell, Outcome]]
Way = Callable[[Iterable[Cell], Material, Shown], Answers]


@dataclass(frozen=True)
class Summary:
    """How many cells there are, how many the store had, and what became of the others."""

    cells: int
    known: int
    measured: int = 0
    needs: int = 0
    failed: int = 0
    failed_before: int = 0
    left: int = 0  # not reached in the time that was given

    def __str__(self) -> str:
        parts = [f"{self.cells} cells: {self.measured} measured"]
        parts += [f"{self.known} already in the store"] * bool(self.known)
        parts += [f"{self.needs} that say what they need"] * bool(self.needs)
        parts += [f"{self.failed} failed"] * bool(self.failed)
        parts += [f"{self.failed_before} failed before (--retry-failed tries them again)"] * bool(
            self.failed_before
        )
        rest = (
            f" The time is over with {self.left} left; the same command goes on."
            if self.left
            else ""
        )
        return ", ".join(parts) + "." + rest


def one_by_one(cells: Iterable[Cell], material: Material, progress: Shown) -> Answers:
    for cell in cells:
        progress.begin(str(cell))
        yield cell, measure(cell, material)


def run(
    cells: Iterable[Cell],
    material: Material,
    store: Store,
    *,
    way: Way = one_by_one,
    retry_failed: bool = False,
    minutes: float | None = None,
    any_code: bool = False,
    console: Console | None = None,
    command: str = "",
) -> Summary:
    """Measure what the store lacks. Stop it in any way and give it again: it goes on where it was.

    After `minutes` no cell is begun any more; those under way are finished. With `any_code` a cell
    that other code or data made a result for counts as measured, as tables show it.
    """
    console = console or Console(quiet=True)
    keys = {cell: key_of(cell, material) for cell in cells}
    status = store.statuses()
    failed_before = [cell for cell, key in keys.items() if status.get(key) == "failed"]
    missing = [cell for cell, key in keys.items() if key not in status]
    if retry_failed:  # and those that lacked something: it may have been installed since
        missing = [cell for cell, key in keys.items() if status.get(key) != "measured"]
        failed_before = []
    if any_code:
        shown_already = store.declarations("measured")
        missing = [cell for cell in missing if declaration_of(cell) not in shown_already]
    console.print(
        f"unsum: {len(missing)} cells to measure, {len(keys) - len(missing)} in the store",
        highlight=False,
    )
    counts = {"measured": 0, "needs": 0, "failed": 0}
    with shown(console, len(missing)) as progress:
        for cell, outcome in way(_until(missing, minutes), material, progress):
            known_as = (keys[cell], declaration_of(cell), cell.content())
            store.put(*known_as, outcome, origin(cell, material, outcome, command))
            counts[outcome.status] += 1
            progress.done(
                str(cell), f"failed: {outcome.sentence}" if outcome.status == "failed" else ""
            )
    known = len(keys) - len(missing) - len(failed_before)
    left = len(missing) - sum(counts.values())
    return Summary(len(keys), known, **counts, failed_before=len(failed_before), left=left)


def _until(cells: Iterable[Cell], minutes: float | None) -> Iterator[Cell]:
    """The cells for as long as there is time to begin one."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for cell in cells:
        if end is not None and time.monotonic() >= end:
            return
        yield cell


_RETRIES = 3  # of a cell whose worker was lost
_AHEAD = 2  # tasks in flight for every one that can run


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray, as a way to measure cells."""

    ray: Any
    gpus: float  # of one cell; 0 on CPUs

    def __call__(self, cells: Iterable[Cell], material: Material, progress: Shown) -> Answers:
        task = self.ray.remote(_measured).options(
            num_cpus=material.threads,
            num_gpus=self.gpus,
            max_retries=_RETRIES,
            retry_exceptions=False,
        )
        waiting = iter(cells)
        flying: dict[Any, Cell] = {}
        while True:
            found = self.ray.cluster_resources()
            places = (
                found.get("GPU", 0) / self.gpus
                if self.gpus
                else found.get("CPU", 1) / material.threads
            )
            for cell in islice(waiting, max(0, _AHEAD * max(1, int(places)) - len(flying))):
                flying[task.remote(cell, material, code_version())] = cell
            if not flying:
                return
            progress.begin(f"{len(flying)} cells on {len(self.ray.nodes())} nodes")
            done, _ = self.ray.wait(list(flying), num_returns=1)
            for reference in done:
                yield flying.pop(reference), self._outcome(reference)

    def _outcome(self, reference: Any) -> Outcome:
        try:
            outcome: Outcome = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            # another unsum on that node: every cell would fail alike
            if isinstance(error.cause, UnsumError):
                raise error.cause from None
            raise
        except self.ray.exceptions.RayError as error:
            reason = str(error).splitlines()[0]
            return Outcome(
                "failed",
                sentence=f"its worker was lost {_RETRIES + 1} times: {reason}",
                traceback=str(error),
            )
        return outcome


def _measured(cell: Cell, material: Material, version: str) -> Outcome:
    """On a worker, which must have the code that the key was made for."""
    if code_version() != version:
        raise UnsumError(
            f"A node of the cluster has another unsum (code {code_version()}, not {version}); "
            "install the same on all."
        )
    return measure(cell, material)


@contextmanager
def cluster(address: str, material: Material, *, gpus: float = 1.0) -> Iterator[Cluster]:
    """`auto`: the cluster that this machine belongs to, or one of its own; `local`: its own; else
    an address, HOST:PORT."""
    needed = gpus if material.device.startswith("cuda") else 0.0
    with connected(address) as ray:
        found = ray.cluster_resources()
        if needed and found.get("GPU", 0) < needed:
            raise UnsumError(
                "No node of the Ray cluster has a GPU; leave --device cuda out, or start one with "
                "--num-gpus."
            )
        if not needed and found.get("CPU", 0) < material.threads:
            raise UnsumError(
                f"No node of the Ray cluster has {material.threads} CPUs free for a cell; lower "
                "--threads."
            )
        yield Cluster(ray, needed)
