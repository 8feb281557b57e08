"""Runs `unsum …` commands where unsum alone is installed; started there with a file of jobs, so it
imports nothing of the tests.

PyTorch takes seconds to import: it is imported once, and every command runs in a fork of its own,
from its own folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

TOGETHER = 2
PATIENCE = 240.0  # seconds for one command on a busy machine


def main() -> None:
    jobs: list[dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    import unsum.commands.audit_tables  # noqa: F401 (PyTorch with it, here, once, for all forks)

    waiting, running = list(jobs), dict[int, tuple[dict[str, Any], float]]()
    while waiting or running:
        while waiting and len(running) < TOGETHER:
            job = waiting.pop(0)
            running[_start(job)] = (job, time.monotonic())
        time.sleep(0.05)
        for pid, (job, started) in list(running.items()):
            _interrupt(pid, job, time.monotonic() - started)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                job["code"], job["seconds"] = (
                    os.waitstatus_to_exitcode(status),
                    time.monotonic() - started,
                )
                del running[pid]
    Path(sys.argv[1]).write_text(json.dumps(jobs), "utf-8")


def _start(job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.chdir(job["folder"])
        for name, stream in (("out", 1), ("err", 2)):
            os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        os.environ |= job["environment"]
        exec(job["before"], {})  # the tests' own text
        sys.argv = job["arguments"]
        from unsum.commands.main import main as unsum

        unsum()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _interrupt(pid: int, job: dict[str, Any], seconds: float) -> None:
    """Ctrl-C once the sign is there that the command is at work; the end for one that takes too
    long."""
    sign = job["until"]
    if sign and not job.get("interrupted") and _shows(job, sign):
        job["interrupted"] = True
        os.kill(pid, signal.SIGINT)
    if seconds > PATIENCE:
        os.kill(pid, signal.SIGKILL)


def _shows(job: dict[str, Any], sign: str) -> bool:
    return any(
        sign in Path(job[name]).read_text("utf-8")
        for name in ("out", "err")
        if Path(job[name]).exists()
    )


if __name__ == "__main__":
    main()
