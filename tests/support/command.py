"""`unsum …` as a user types it, in this process: exit code, output and errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from unsum.commands import main as cli
from unsum.commands.stages import OUT


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(OUT, "width", 200)

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["unsum", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)

    return run
