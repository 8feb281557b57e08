"""A run that is killed loses one cell at most, and what it becomes in the end is what it would have
been."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from support.bench_cells import values
from support.bench_process import command, environment
from unsum_bench.experiments import EXPERIMENTS
from unsum_bench.material import Material
from unsum_bench.plan import cells_of
from unsum_bench.run import run
from unsum_bench.store import Store

TABLES = ("rgla-8",)


def count(path: Path) -> int:
    """Cells in the store, looked at from outside while a run writes."""
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            return int(database.execute("SELECT count(*) FROM cells").fetchone()[0])
    except sqlite3.OperationalError:  # not there yet
        return 0


@pytest.mark.long
def test_killed_and_resumed_is_the_same_as_uninterrupted(tmp_path: Path) -> None:
    words = command(*TABLES, "--size", "smoke", "--store", "killed.sqlite", "--json")
    killed = tmp_path / "killed.sqlite"
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 900
    while count(killed) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL  # it was still at work
    kept = count(killed)
    cells = list(
        dict.fromkeys(cell for name in TABLES for cell in cells_of(EXPERIMENTS[name], "smoke"))
    )
    assert 3 <= kept < len(cells)

    with Store(killed) as store:
        before = {result.key: result.finished for result in store}
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=1200,
        check=True,
    )
    assert f'"known": {kept}' in done.stdout
    with Store(killed) as store, Store(tmp_path / "whole.sqlite") as whole:
        # nothing was measured twice
        assert {r.key: r.finished for r in store if r.key in before} == before
        run(cells, Material(), whole)
        assert len(values(whole)) == len(cells)
        assert values(store) == values(whole)
