"""Whether what an attack claims about a case is so."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from scipy.optimize import nnls

import unsum
from unsum.errors import UnsumError
from unsum_bench.scripts.cases import Case
from unsum_bench.scripts.fool.common import (
    FALSE_CLAIM,
    TRACE,
    UNEXPLAINED,
    WRONG_TARGET,
    Genome,
    TooLongError,
    Try,
    deadline,
    false_count,
)  # fmt: skip

_TOGETHER = 1e3  # weight of the condition that shares of targets add up to one
Verdict = tuple[float, float, str]  # error of features, of labels, and how a claim would be false


def timed(
    genome: Genome,
    seconds: float,
    attack: Callable[[], unsum.Leak],
    judge: Callable[[unsum.Leak], Verdict],
    found: Callable[[unsum.Leak], float] = lambda _leak: math.nan,
) -> Try:
    """The attack within its time, what the judge says about a claim, and the error of what was
    `found`, if that is known."""
    start = time.process_time()
    try:
        with deadline(seconds):
            leak = attack()
    except TooLongError:
        return Try(genome, "stopped", seconds=time.process_time() - start)
    except UnsumError:
        return Try(genome, "refused", seconds=time.process_time() - start)
    took = time.process_time() - start
    ended = "claimed" if leak.exact else "not claimed"
    predicted = math.inf if math.isnan(leak.predicted_error) else leak.predicted_error
    error, label_error, bad = judge(leak)
    return Try(
        genome, ended, error, label_error, predicted, bad if leak.exact else "", took, found(leak)
    )


def nearest(true: torch.Tensor, leak: unsum.Leak) -> float:
    """The largest distance of a found sample's features from the nearest true ones, relative; NaN
    where none is predicted."""
    if (
        math.isnan(leak.predicted_error)
        or leak.batch_size == 0
        or leak.features.shape[1:] != true.shape[1:]
    ):
        return math.nan
    apart = torch.cdist(leak.features.double(), true.double()) / true.double().norm(
        dim=1
    ).clamp_min(1e-300)
    return float(apart.amin(1).max())


def against_truth(case: Case, G: torch.Tensor, leak: unsum.Leak) -> Verdict:
    """Features, labels, and how a claim of them would be false; G (B, C) is what the loss sends to
    the logits."""
    error, label_error = min((_errors(one, leak) for one in _findable(case, G, leak)), key=max)
    bad = (
        "features"
        if not error <= FALSE_CLAIM
        else "labels"
        if not label_error <= WRONG_TARGET
        else ""
    )
    return error, label_error, bad or false_count(leak, case.targets.argmax(1).cpu())


def against_gradient(case: Case, leak: unsum.Leak) -> Verdict:
    """For gradients that no batch sent: the claimed one must at least send them."""
    error = _number(_unexplained(case, leak))
    return error, 0.0, "a batch that does not send the gradient" if not error <= UNEXPLAINED else ""


def _number(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _errors(case: Case, leak: unsum.Leak) -> tuple[float, float]:
    """Of features and of labels, as sets; where nobody sent anything every answer is wrong."""
    if len(case.features) == 0:
        return math.inf, math.inf
    true, found = case.features.double(), leak.features.double()
    apart = torch.cdist(true, found) / true.norm(dim=1, keepdim=True).clamp_min(1e-300)
    error = float(torch.maximum(apart.amin(0).max(), apart.amin(1).max()))
    return _number(error), _number(
        _target_error(case.targets.double(), leak.targets.double(), apart)
    )


def _findable(case: Case, G: torch.Tensor, leak: unsum.Leak) -> list[Case]:
    """The case without samples that the model predicts so well that they send nothing; and with
    those of them that were found."""
    true = case.features.double()
    sent = G.norm(dim=1) * true.norm(dim=1)
    traced = (sent > TRACE * sent.max()) & (sent > 0)
    found = torch.cdist(true, leak.features.double()).amin(1) <= FALSE_CLAIM * true.norm(dim=1)
    kinds = (traced, traced | found)
    return [
        replace(case, features=case.features[kept], targets=case.targets[kept]) for kept in kinds
    ]


def _unexplained(case: Case, leak: unsum.Leak) -> float:
    """How much of the gradient the claimed batch leaves, relative: its own gradient, times the
    scale it claims."""
    G = leak.logits.softmax(1) - leak.targets
    factor = leak.scale / (leak.batch_size if case.update.reduction == "mean" else 1)
    sent = case.update.gradients["weight"].double()
    return float(
        (factor * G.T @ leak.features.double() - sent).norm() / sent.norm().clamp_min(1e-300)
    )


def _target_error(true: torch.Tensor, found: torch.Tensor, apart: torch.Tensor) -> float:
    """The largest difference between a found sample's targets and those of the true samples (rows
    of `apart`) that it stands for.

    Several samples with equal features send what one of their mean target sends, whatever each of
    them weighs.
    """
    errors = [
        1.0 if not len(near := true[apart[:, i] <= FALSE_CLAIM]) else _outside(near, found[i])
        for i in range(len(found))
    ]
    return max(errors, default=1.0)


def _outside(some: torch.Tensor, one: torch.Tensor) -> float:
    """How far a target is from all means of some others, in its largest entry."""
    if not bool(one.isfinite().all()):
        return math.inf
    nearest_one = float((some - one).abs().amax(1).min())
    columns = torch.cat([some, _TOGETHER * torch.ones_like(some[:, :1])], 1).T
    weights = torch.as_tensor(nnls(columns.cpu().numpy(), [*one.tolist(), _TOGETHER])[0]).to(some)
    return min(nearest_one, float((weights @ some - one).abs().max()))
