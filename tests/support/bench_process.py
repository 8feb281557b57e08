"""`unsum bench` in a process of its own, with or without the example plug-in on its path."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

PLUGIN = Path(__file__).parents[1] / "bench" / "plugin"


class Result(NamedTuple):
    code: int
    out: str
    err: str


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "unsum.commands.main", "bench", *words]


def environment(**more: str) -> dict[str, str]:
    """One thread, so that two processes compute the same."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def with_plugin(**more: str) -> dict[str, str]:
    paths = [str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
    return environment(PYTHONPATH=os.pathsep.join(paths), **more)
