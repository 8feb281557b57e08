"""An audit that must not hold up training: it gets so many seconds, and not one more.

Servers run strategies in threads of their own, where alarms cannot be set. So the work runs in a
thread, and when its time is over an exception is raised inside it, which Python delivers between
two of its steps. The caller goes on at once; the thread ends a moment later, by itself.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")
# of the seconds given, which a search is told: it ends with its best answer before it would be
# stopped
SEARCHING = 0.9
# seconds in which a stopped thread usually ends, so that none runs beside the training
_GRACE = 0.05


class OutOfTime(Exception):  # noqa: N818 (it is no error: the budget is the user's own choice)
    """The work was stopped because its time was over."""


class _Stop(BaseException):
    """Raised inside the work; no `except Exception` there can swallow it."""


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """What `work()` returns or raises; OutOfTime where it takes longer than `seconds`."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="unsum-audit", daemon=True)
    thread.start()
    thread.join(max(seconds, 0.0))
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Stop)
        )
        thread.join(_GRACE)
        raise OutOfTime
    return outcome.result()
