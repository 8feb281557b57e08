"""One try of benchmarks/fool_certificate.py: the attack on a case, and whether what it claims is so."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment

import unsum
from cases import Case
from fool_cases import Genome, build, told
from unsum.errors import UnsumError

FALSE_CLAIM, WRONG_TARGET, UNEXPLAINED = 1e-2, 1e-2, 1e-2
TRACE = 1e-5  # of the largest sample's own gradient: float32 rounds at 6e-8, and most of a sample lies along the others
_LIMIT = 1e-3  # predicted error from which the solver claims nothing


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


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """`TooLongError` after so many seconds of this process's own work: another machine's load changes nothing."""

    def stop(*_: Any) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0 if math.isinf(seconds) else seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    case = build(genome)
    if not all(bool(torch.isfinite(t).all()) for t in case.update.gradients.values()):
        return Try(genome, "refused")
    start = time.perf_counter()
    try:
        with deadline(seconds):
            leak = _attacked(genome, case)
    except TooLongError:
        return Try(genome, "stopped", seconds=time.perf_counter() - start)
    except UnsumError:
        return Try(genome, "refused", seconds=time.perf_counter() - start)
    return _judged(genome, case, leak, time.perf_counter() - start)


def _attacked(genome: Genome, case: Case) -> unsum.Leak:
    known: dict[str, Any] = {}
    if told(genome) == "batch size":
        known["batch_size"] = len(case.features)
    if told(genome) == "labels":
        known["labels"] = case.targets.argmax(1)
    if genome["method"] == "auto":
        return unsum.attack(case.model, case.update, seed=0, **known)
    return unsum.separate(case.model, case.update, genome["method"], seed=0, **known)


def _judged(genome: Genome, case: Case, leak: unsum.Leak, seconds: float) -> Try:
    ended = "claimed" if leak.exact else "not claimed"
    predicted = math.inf if math.isnan(leak.predicted_error) else leak.predicted_error
    if genome["forged"] != "no":
        error, label_error = _number(_unexplained(case, leak)), 0.0
        bad = "a batch that does not send the gradient" if not error <= UNEXPLAINED else ""
    else:
        error, label_error = min((_errors(one, leak) for one in _findable(case, leak)), key=max)
        bad = "features" if not error <= FALSE_CLAIM else "labels" if not label_error <= WRONG_TARGET else ""
    return Try(genome, ended, error, label_error, predicted, bad if leak.exact else "", seconds)


def _number(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _errors(case: Case, leak: unsum.Leak) -> tuple[float, float]:
    """Of features and of labels; where nobody sent anything every answer is wrong."""
    if len(case.features) == 0:
        return math.inf, math.inf
    return _number(case.worst_error(leak)), _number(_target_error(case, leak))


def _findable(case: Case, leak: unsum.Leak) -> list[Case]:
    """The case without samples that the model predicts so well that they send nothing; and with those of them that were found."""
    with torch.no_grad():
        G = case.model(case.features).double().softmax(1) - case.targets
    true = case.features.double()
    sent = G.norm(dim=1) * true.norm(dim=1)
    traced = (sent > TRACE * sent.max()) & (sent > 0)
    found = torch.cdist(true, leak.features.double()).amin(1) <= FALSE_CLAIM * true.norm(dim=1)
    kinds = (traced, traced | found)
    return [replace(case, features=case.features[kept], targets=case.targets[kept]) for kept in kinds]


def _unexplained(case: Case, leak: unsum.Leak) -> float:
    """How much of the gradient the claimed batch leaves, relative: its own gradient, times the scale it claims."""
    G = leak.logits.softmax(1) - leak.targets
    factor = leak.scale / (leak.batch_size if case.update.reduction == "mean" else 1)
    sent = case.update.gradients["weight"].double()
    return float((factor * G.T @ leak.features.double() - sent).norm() / sent.norm().clamp_min(1e-300))


def _target_error(case: Case, leak: unsum.Leak) -> float:
    """The largest difference between a found sample's targets and those of the true samples that it stands for, in the mean.

    Several samples with equal features send what one of their mean target sends: that they are several is no mistake's.
    """
    true, found = case.features.double(), leak.features.double()
    cost = torch.cdist(true, found) / true.norm(dim=1, keepdim=True).clamp_min(1e-300)
    if leak.batch_size == len(true):
        pairs = cost + torch.cdist(case.targets, leak.targets.double())
        owner = torch.as_tensor(linear_sum_assignment(pairs.nan_to_num(1e9))[1])
    else:
        owner = cost.argmin(1)
    errors = []
    for i in range(leak.batch_size):
        mean = case.targets[owner == i].mean(0)
        errors.append(float((leak.targets[i].double() - mean).abs().max()) if bool((owner == i).any()) else 1.0)
    return max(errors)
