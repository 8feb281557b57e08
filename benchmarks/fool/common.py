"""What every path of the search for false claims shares: a try and what came of it, its time limit, and when a claim is false."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

Genome = dict[str, Any]
FALSE_CLAIM, WRONG_TARGET, UNEXPLAINED = 1e-2, 1e-2, 1e-2
TRACE = 1e-5  # of the largest sample's own gradient: who sends less may be missing
_LIMIT = 1e-3  # predicted error from which nothing is claimed
_MOMENT = 0.05  # seconds after which an import, a tracing or a derivative is looked at again
# PyTorch's files that patch modules while they trace one, or count levels of derivatives that they have entered.
_PATCHING = ("fx/_symbolic_trace.py", "autograd/forward_ad.py", "_functorch/eager_transforms.py")


class TooLongError(BaseException):
    """The try's time is over; nothing in between may take it for a failure of its own."""


@dataclass(frozen=True)
class Try:
    """One case and what came of it."""

    genome: Genome
    ended: str  # "claimed", "not claimed", "refused" with a sentence, or "stopped" by the deadline
    error: float = math.inf
    label_error: float = math.inf
    predicted: float = math.inf
    fooled: str = ""  # how, if it was
    seconds: float = 0.0

    @property
    def claimed(self) -> bool:
        return self.ended == "claimed"

    @property
    def fitness(self) -> float:
        """Of a claim: its true error, also relative to the predicted one. Of the others: an error that was nearly claimed."""
        true = math.log10(min(max(self.error, self.label_error, 1e-16), 10.0))
        predicted = math.log10(min(max(self.predicted, 1e-16), 1e6))
        if self.fooled:
            return 100.0
        return true + 0.5 * (true - predicted) if self.claimed else true - max(0.0, predicted - math.log10(_LIMIT))


def _leaves_halves(frame: FrameType | None) -> bool:
    """Whether a module is being imported, traced or derived: cut in the midst, every later try would crash on what is left."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_filename.endswith(_PATCHING):
            return True
        frame = frame.f_back
    return False


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """`TooLongError` after so many seconds of this process's own work: another machine's load changes nothing."""

    def stop(_signal: int, frame: FrameType | None) -> None:
        if _leaves_halves(frame):
            signal.setitimer(signal.ITIMER_VIRTUAL, _MOMENT)
        else:
            raise TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0 if math.isinf(seconds) else seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
