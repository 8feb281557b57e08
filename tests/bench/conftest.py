"""The smoke run as a user types it, once for all tests of what is made of its store; and unsum's
command in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.bench_process import Result, command, environment
from unsum.commands import main as cli

# somebody else's package: imported here it would join the registries of every other test
collect_ignore = ["plugin"]


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The store of `unsum bench --size smoke`, and what the command printed."""
    folder = tmp_path_factory.mktemp("smoke")
    words = command("--size", "smoke", "--store", "smoke.sqlite")
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    return folder / "smoke.sqlite", Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Run `unsum bench …` in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["unsum", "bench", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)

    return run
