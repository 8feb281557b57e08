"""One computation at a time; a newer request of the same page takes the place of its older one,
even halfway through."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from torch.overrides import TorchFunctionMode

from unsum.app.round import Answer
from unsum.errors import UnsumError
from unsum.running.deadline import time_limit
from unsum.running.progress import Looking, Progress

MOST_WAITING = 8  # pages, each with one request
_LOG = logging.getLogger("unsum.app")


class Superseded(BaseException):
    """Raised inside a computation that nobody waits for. No `Exception`, so that no attack takes it
    for a failed step."""


class _Interruptible(TorchFunctionMode):
    """Looks at the bell before every call of PyTorch: attacks make many small ones, and none of
    them asks who is waiting."""

    def __init__(self, bell: threading.Event) -> None:
        super().__init__()
        self._bell = bell

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._bell.is_set():
            raise Superseded
        return func(*args, **(kwargs or {}))


class _Told(Progress):
    """What a long search is at, beside the stage that it belongs to."""

    def __init__(self, tell: Callable[[Answer | None], None]) -> None:
        self._tell = tell

    def looking(self, state: Looking) -> None:
        self._tell({"kind": "search", "sentence": f"The server is {state}"})


class Job:
    """A computation and the answers it has given so far."""

    def __init__(self, work: Callable[[], Generator[Answer, None, None]]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._bell = threading.Event()

    def stop(self) -> None:
        self._bell.set()

    async def answers(self) -> AsyncIterator[Answer]:
        """Until the last one; whoever stops listening stops the computation."""
        try:
            while (answer := await self._answers.get()) is not None:
                yield answer
        finally:
            self.stop()

    def run(self) -> None:
        """In the worker's thread."""
        try:
            with (
                closing(self._work()) as answers,
                _Interruptible(self._bell),
                time_limit(math.inf, _Told(self._tell)),
            ):
                for answer in answers:
                    if self._bell.is_set():
                        raise Superseded
                    self._tell(answer)
        except Superseded:
            self._tell({"kind": "superseded"})
        except UnsumError as error:
            self._tell({"kind": "error", "sentence": str(error)})
        except Exception:  # the page must hear of a defect, too
            _LOG.exception("A round failed")
            self._tell(
                {
                    "kind": "error",
                    "sentence": "The round failed; the terminal where unsum runs says more.",
                }
            )
        finally:
            self._tell(None)

    def _tell(self, answer: Answer | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._answers.put_nowait, answer)


class Worker:
    """The one thread that computes. Its methods are called from the event loop alone."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="unsum-round")
        self._jobs: dict[str, Job] = {}

    def start(self, page: str, work: Callable[[], Generator[Answer, None, None]]) -> Job:
        if page in self._jobs:
            self._jobs[page].stop()
        elif len(self._jobs) >= MOST_WAITING:
            raise UnsumError(
                "Too many pages are waiting for this machine; close some of them and try again."
            )
        job = self._jobs[page] = Job(work)
        done = asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        done.add_done_callback(lambda _future: self._forget(page, job))
        return job

    def close(self) -> None:
        for job in self._jobs.values():
            job.stop()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _forget(self, page: str, job: Job) -> None:
        if self._jobs.get(page) is job:
            del self._jobs[page]
