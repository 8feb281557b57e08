"""What every path of the search for false claims shares: a try and what came of it, its time limit,
and when a claim is false."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

import unsum

Genome = dict[str, Any]
FALSE_CLAIM, WRONG_TARGET, UNEXPLAINED = 1e-2, 1e-2, 1e-2
TRACE = 1e-5  # of the largest sample's own gradient: who sends less may be missing
# times what was predicted, and an error, from which a prediction was not honest
OPTIMISTIC, FAR = 10.0, 3e-2
# How a client's samples weigh in its gradient: mostly alike, else in whole multiples, as copies do.
WEIGHTS = (*["alike"] * 6, "class weights", "micro-batches", "two clients", "sample weights")
_LIMIT = 1e-3  # predicted error from which nothing is claimed
_MOMENT = 0.05  # seconds after which an import, a tracing or a derivative is looked at again
# PyTorch's files that patch modules while they trace one, or count levels of derivatives that they
# have entered.
_PATCHING = ("fx/_symbolic_trace.py", "autograd/forward_ad.py", "_functorch/eager_transforms.py")


class TooLongError(BaseException):
    """The try's time is over; nothing in between may take it for a failure of its own."""


@dataclass(frozen=True)
class Try:
    """One case and what came of it."""

    genome: Genome
    ended: str  # "claimed", "not claimed", "refused" with a sentence, or "stopped" by the deadline
    error: float = math.inf  # of samples that were found, and that are missing
    label_error: float = math.inf
    predicted: float = math.inf  # or NaN, where nothing is
    fooled: str = ""  # how, if it was
    seconds: float = 0.0
    # of the samples that were found alone, which is what the attack predicts
    found_error: float = math.nan

    @property
    def optimistic(self) -> bool:
        """Whether the samples found are farther off than was predicted, by more than a prediction
        may be."""
        return math.isfinite(self.predicted) and self.found_error > max(
            FAR, OPTIMISTIC * self.predicted
        )

    @property
    def claimed(self) -> bool:
        return self.ended == "claimed"

    @property
    def fitness(self) -> float:
        """Of a claim: its true error, also relative to the predicted one. Of the others: an error
        that was nearly claimed."""
        true = math.log10(min(max(self.error, self.label_error, 1e-16), 10.0))
        unknown = math.isnan(self.predicted)
        predicted = math.log10(1e6 if unknown else min(max(self.predicted, 1e-16), 1e6))
        if self.fooled:
            return 100.0
        return (
            true + 0.5 * (true - predicted)
            if self.claimed
            else true - max(0.0, predicted - math.log10(_LIMIT))
        )


def _leaves_halves(frame: FrameType | None) -> bool:
    """Whether a module is being imported, traced or derived: cut in the midst, every later try
    would crash on what is left."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(
            "<frozen importlib"
        ) or frame.f_code.co_filename.endswith(_PATCHING):
            return True
        frame = frame.f_back
    return False


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """`TooLongError` after so many seconds of this process's own work: another machine's load
    changes nothing."""

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


def relative_weights(kind: str, labels: Tensor, seed: int) -> Tensor:
    """(B,) what each sample weighs, where 1 is its share of a plain mean."""
    B, generator = len(labels), torch.Generator().manual_seed(seed + 5)
    first = int(torch.randint(1, max(B, 2), (), generator=generator))  # of a batch in two parts
    parts = torch.where(torch.arange(B) < first, first, max(B - first, 1)).double()
    if kind == "class weights":
        whole = torch.randint(1, 4, (int(labels.max()) + 1,), generator=generator).double()[labels]
    elif kind == "sample weights":
        whole = torch.randint(1, 4, (B,), generator=generator).double()
    elif kind in ("micro-batches", "two clients"):
        return B / parts / (1 if kind == "two clients" or B == 1 else 2)
    else:
        return torch.ones(B, dtype=torch.float64)
    return B * whole / whole.sum()


def false_count(leak: unsum.Leak, labels: Tensor, samples: int | None = None) -> str:
    """How a claim about the number of samples would be false: of B true ones with `labels`, so many
    of which are different."""
    if leak.distinct > (len(labels) if samples is None else samples):
        return "counts: more distinct samples than there are"
    if not leak.counts_certain:
        return ""
    same = leak.labels.sort().values.tolist() == labels.sort().values.tolist()
    return "" if same else "counts: copies that are certain are none"
