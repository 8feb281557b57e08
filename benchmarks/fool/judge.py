"""Whether what an attack claims about a case is so."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from common import FALSE_CLAIM, TRACE, UNEXPLAINED, WRONG_TARGET, Genome, TooLongError, Try, deadline
from scipy.optimize import linear_sum_assignment

import unsum
from cases import Case
from unsum.errors import UnsumError

Verdict = tuple[float, float, str]  # error of features, of labels, and how a claim would be false


def timed(
    genome: Genome, seconds: float, attack: Callable[[], unsum.Leak], judge: Callable[[unsum.Leak], Verdict]
) -> Try:
    """The attack within its time, and what the judge says about a claim."""
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
    return Try(genome, ended, error, label_error, predicted, bad if leak.exact else "", took)


def against_truth(case: Case, G: torch.Tensor, leak: unsum.Leak) -> Verdict:
    """Features, labels, and how a claim of them would be false; G (B, C) is what the loss sends to the logits."""
    error, label_error = min((_errors(one, leak) for one in _findable(case, G, leak)), key=max)
    bad = "features" if not error <= FALSE_CLAIM else "labels" if not label_error <= WRONG_TARGET else ""
    return error, label_error, bad


def against_gradient(case: Case, leak: unsum.Leak) -> Verdict:
    """For gradients that no batch sent: the claimed one must at least send them."""
    error = _number(_unexplained(case, leak))
    return error, 0.0, "a batch that does not send the gradient" if not error <= UNEXPLAINED else ""


def _number(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _errors(case: Case, leak: unsum.Leak) -> tuple[float, float]:
    """Of features and of labels; where nobody sent anything every answer is wrong."""
    if len(case.features) == 0:
        return math.inf, math.inf
    return _number(case.worst_error(leak)), _number(_target_error(case, leak))


def _findable(case: Case, G: torch.Tensor, leak: unsum.Leak) -> list[Case]:
    """The case without samples that the model predicts so well that they send nothing; and with those of them that were found."""
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
        pairs = cost + torch.cdist(case.targets.double(), leak.targets.double())
        owner = torch.as_tensor(linear_sum_assignment(pairs.nan_to_num(1e9))[1])
    else:
        owner = cost.argmin(1)
    errors = []
    for i in range(leak.batch_size):
        mean = case.targets[owner == i].double().mean(0)
        errors.append(float((leak.targets[i].double() - mean).abs().max()) if bool((owner == i).any()) else 1.0)
    return max(errors)
