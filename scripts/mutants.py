"""One hundred bugs, planted one at a time: which of them do the tests beside the module let pass?

    uv run python scripts/mutants.py                all of scripts/mutants.toml, from where it
                                                    stopped
    uv run python scripts/mutants.py --only spans   those whose file or description holds this
    uv run python scripts/mutants.py --processes 2  two copies of the tree at once

Every bug is one line that is wrong: a row of the table has the file under src/unsum, the exact old
text, the new one, the tests beside the module, and what the bug does. It is planted in a copy of
the tree, never in the tree itself, and these tests alone are run, with a time limit. A bug that
none of them notices survived, and is named at the end. Tests that fail without the bug show
nothing, so they are run without it first.

Outcomes are kept in build/mutants.json, each for as long as its row, its module and its tests stay
as they are; `--fresh` tries them again, for changes elsewhere. The exit code is 1 where fewer than
ninety of a hundred were caught.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "scripts" / "mutants.toml"
RECORD = ROOT / "build" / "mutants.json"
SOURCE = Path("src/unsum")
CAUGHT, SURVIVED, BROKEN = "caught", "survived", "its tests fail without it"
SECONDS = 240.0  # for the tests of one bug: several times what the slowest of them take on one core
NEEDED = 0.9  # of all bugs that must be caught
# pytest's exit codes; a module that cannot be collected interrupts
_PASSED, _FAILED, _INTERRUPTED = 0, 1, 2
# of a copy: no test beside a module reads them
_LEFT_OUT = ("docs/results/", "docs/figures/", "fuzz/corpus/")
# once, not once a bug
_SLOW_TO_IMPORT = ["torch", "torchvision", "scipy.optimize", "hypothesis", "pytest"]


@dataclass(frozen=True)
class Bug:
    """A row of the table; `file` lies under src/unsum, `tests` are folders, files or single tests,
    the quickest first."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    what: str

    @property
    def name(self) -> str:
        return f"{self.file}: {self.what}"

    def planted(self, text: str) -> str:
        """The module with the bug, whose old text must stand there exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(
                f"{self.file}: {self.old!r} stands there {count} times, not once; mend the table."
            )
        return text.replace(self.old, self.new)

    def key(self, root: Path) -> str:
        """Changes with the row, the module and the tests."""
        digest = hashlib.sha256(repr(self).encode())
        for path in (
            root / SOURCE / self.file,
            *(root / test.partition("::")[0] for test in self.tests),
        ):
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def read_table(path: Path = TABLE) -> list[Bug]:
    """The rows, each of the right fields."""
    bugs = []
    for row in tomllib.loads(path.read_text(encoding="utf-8"))["bug"]:
        if set(row) != {field.name for field in fields(Bug)}:
            raise ValueError(f"A row has the fields {sorted(row)}: {row}")
        bugs.append(Bug(**row | {"tests": tuple(row["tests"])}))
    return bugs


class Copy:
    """A copy of the tree in a temporary folder, and the tests in it."""

    def __init__(self, root: Path, place: Path, start: str = "forkserver") -> None:
        self.place, self._start, self._date = place, start, 0
        self._sound: dict[tuple[str, ...], bool] = {}  # tests → whether they pass without a bug
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        for name in filter(None, subprocess.check_output(listed, cwd=root, text=True).split("\0")):
            if not name.startswith(_LEFT_OUT) and (root / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, place / name)

    def outcome(self, bug: Bug, seconds: float) -> str:
        """What the tests make of it, once they have passed without it."""
        file = self.place / SOURCE / bug.file
        right = file.read_text(encoding="utf-8")
        wrong = bug.planted(right)
        if bug.tests not in self._sound:
            self._sound[bug.tests] = self._passes(bug.tests, seconds)
        if not self._sound[bug.tests]:
            return BROKEN
        try:
            self._write(file, wrong)
            return SURVIVED if self._passes(bug.tests, seconds) else CAUGHT
        finally:
            self._write(file, right)

    def _write(self, file: Path, text: str) -> None:
        """With a date of its own, by which Python tells that what it compiled before is out of
        date: two bugs of one length in one second would look the same."""
        file.write_text(text, encoding="utf-8")
        self._date += 1
        os.utime(file, (self._date, self._date))

    def _passes(self, tests: Sequence[str], seconds: float) -> bool:
        """Whether the tests pass, in a process of their own; those that a bug keeps from ending
        have failed."""
        processes = multiprocessing.get_context(self._start)
        process = processes.Process(target=_run, args=(self.place, tests))
        process.start()
        process.join(seconds)
        code = _FAILED if process.exitcode is None else process.exitcode
        with suppress(ProcessLookupError):  # what the tests started is in their session
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        if code not in (_PASSED, _FAILED, _INTERRUPTED):
            raise RuntimeError(f"pytest ended with {code}: {' '.join(tests)}")
        return code == _PASSED


def _run(place: Path, tests: Sequence[str]) -> None:
    """In a process of its own: pytest in a copy of the tree, which this process's children import
    as well."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.chdir(place)
    os.environ["PYTHONPATH"] = str(place / "src")
    sys.path.insert(0, str(place / "src"))
    import pytest

    import unsum

    if not Path(unsum.__file__).is_relative_to(place):
        sys.exit(100)  # none of pytest's own
    sys.exit(int(pytest.main(["-x", "-n", "0", "-q", "-p", "no:cacheprovider", *tests])))


class Record:
    """What came of every bug, on disk after each."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, key: str) -> str | None:
        return self._known.get(key)

    def put(self, key: str, outcome: str) -> None:
        with self._lock:
            self._known[key] = outcome
            self._path.parent.mkdir(exist_ok=True)
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(self._known, indent=1))
            part.replace(self._path)


def try_all(
    bugs: Sequence[Bug], record: Record, *, processes: int, seconds: float, fresh: bool
) -> dict[Bug, str]:
    """Every bug's outcome; copies of the tree are made only for those that are not known."""
    keys = {bug: bug.key(ROOT) for bug in bugs}  # before files change under the copies' feet
    known = {} if fresh else {bug: record.get(key) for bug, key in keys.items()}
    outcomes = {bug: outcome for bug, outcome in known.items() if outcome is not None}
    left = [bug for bug in bugs if bug not in outcomes]
    if not left:
        return outcomes
    os.environ["OMP_NUM_THREADS"] = "1"  # read when PyTorch is imported
    multiprocessing.get_context("forkserver").set_forkserver_preload(_SLOW_TO_IMPORT)
    with (
        tempfile.TemporaryDirectory(prefix="unsum-mutants-") as folder,
        ThreadPoolExecutor(processes) as pool,
    ):
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(min(processes, len(left))):
            copies.put(Copy(ROOT, Path(folder) / str(number)))

        def tried(bug: Bug) -> str:
            copy = copies.get()
            try:
                return copy.outcome(bug, seconds)
            finally:
                copies.put(copy)

        for place, (bug, outcome) in enumerate(zip(left, pool.map(tried, left), strict=True), 1):
            outcomes[bug] = outcome
            if outcome != BROKEN:  # which may be mended elsewhere
                record.put(keys[bug], outcome)
            print(f"{place} of {len(left)}: {outcome}: {bug.name}", flush=True)
    return outcomes


def summary(outcomes: dict[Bug, str]) -> str:
    """Those that were not caught, and how many were."""
    lines = [
        (
            f"{outcome.upper()}: {bug.name}\n    {bug.old.strip()}\n  → {bug.new.strip()}\n    "
            f"tried: {' '.join(bug.tests)}"
        )
        for bug, outcome in outcomes.items()
        if outcome != CAUGHT
    ]
    caught = sum(outcome == CAUGHT for outcome in outcomes.values())
    return "\n".join(
        [*lines, f"{caught} of {len(outcomes)} bugs were caught by the tests beside them."]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="bugs whose file or description holds this"
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="copies of the tree that are tested at once"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for the tests of one bug")
    parser.add_argument(
        "--fresh", action="store_true", help="try those again that were tried before"
    )
    given = parser.parse_args()
    bugs = [bug for bug in read_table() if given.only.lower() in bug.name.lower()]
    if not bugs:
        parser.error(f"no bug's file or description holds {given.only!r}")
    for bug in bugs:  # before anything is run
        bug.planted((ROOT / SOURCE / bug.file).read_text(encoding="utf-8"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave no copy behind
    outcomes = try_all(
        bugs, Record(RECORD), processes=given.processes, seconds=given.seconds, fresh=given.fresh
    )
    print(summary({bug: outcomes[bug] for bug in bugs}))
    return int(sum(outcome == CAUGHT for outcome in outcomes.values()) < NEEDED * len(bugs))


if __name__ == "__main__":
    sys.exit(main())
