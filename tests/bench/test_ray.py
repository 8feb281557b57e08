"""A real Ray cluster of several processes, with a plug-in installed, and a worker that is killed in
the middle of its cell."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.bench_cells import values
from support.bench_process import Result, command, with_plugin
from unsum_bench.store import Store

# Looked for and not imported: every process collects this file, and only one runs it.
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]
ATTACKS = ("fgla", "class-means")  # the second is the plug-in's
CHOSEN = [word for attack in ATTACKS for word in ("--attack", attack)]
WORDS = ("rgla-4", *CHOSEN, "--size", "smoke", "--json", "--store")


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serial")
    subprocess.run(
        command(*WORDS, "serial.sqlite"),
        cwd=folder,
        env=with_plugin(),
        capture_output=True,
        timeout=1200,
        check=True,
    )
    return folder / "serial.sqlite"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, int]:
    """On a cluster of its own, whatever other Ray there is; the first worker at the plug-in's
    attack is killed meanwhile."""
    folder = tmp_path_factory.mktemp("ray")
    told = folder / "worker.pid"
    short = {"UNSUM_EXAMPLE_TELL": str(told), "RAY_TMPDIR": "/tmp"}
    process = subprocess.Popen(
        command(*WORDS, "ray.sqlite", "--ray", "local"),
        cwd=folder,
        env=with_plugin(**short),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 900
    while (
        not (told.exists() and told.read_text())
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    victim = int(told.read_text()) if told.exists() else 0
    if victim:
        os.kill(victim, signal.SIGKILL)
    out, err = process.communicate(timeout=1200)
    return folder / "ray.sqlite", Result(process.returncode, out, err), victim


def test_results_are_complete_and_those_of_the_serial_run(
    serial: Path, killed: tuple[Path, Result, int]
) -> None:
    path, result, victim = killed
    assert victim, result.err
    assert result.code == 0, result.err
    with Store(path) as on_ray, Store(serial) as alone:
        assert values(on_ray) == values(alone)
        assert "failed" not in on_ray.statuses().values()


def test_the_plug_ins_rows_are_measured(serial: Path) -> None:
    with Store(serial, read_only=True) as store:
        rows = store._database.execute(
            "SELECT cell, status FROM cells WHERE cell LIKE '%class-means%'"
        ).fetchall()
        defended = store._database.execute(
            "SELECT status FROM cells WHERE cell LIKE '%shrink:0.25%'"
        ).fetchall()
    assert len(rows) == 4  # two batches, with and without the plug-in's defense
    assert {status for _, status in rows} == {"measured"}
    assert len(defended) == 2 * len(ATTACKS)
