"""Where to start for weighted cross-entropy and focal loss: as for plain cross-entropy, with counts
in units of the weights.

The regression over classes takes the weighted mean and covariance of the samples; a label row tells
Σ m_i t_i of its samples and their share of Σ m_i. Samples of one label carry one weight, so counts
follow: n_y ∝ share_y / w_y.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from unsum.equation.observation import Observation
from unsum.labels.ilrg import whole_counts
from unsum.losses import Softmax
from unsum.separate.exact.regression import ClassLine, fit_class_line
from unsum.separate.exact.starts import rotate_to_targets

_LIFTS = 4  # rounds that put back what smoothing took, with a better mean each time
_EACH = 3  # starts of one hypothesis
_MORE = 3  # samples beyond the rank that are tried, where features coincide


def starts(
    observation: Observation, loss: Softmax, targets: Tensor | None, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Targets Y that are assumed, each with a few starts for T: the most likely hypothesis
    first."""
    C = observation.classes
    w = loss.class_weights(C)
    weights = observation.b.new_ones(C) if w is None else w.to(observation.b)
    line = _line(observation, loss, weights)
    hypotheses = [targets] if targets is not None else _hypotheses(line, weights, observation.rank)
    for Y in hypotheses:
        total = float((Y @ weights).sum())
        scaled = replace(line, sums=line.sums * (total / len(Y)) / weights[:, None])
        for _ in range(_EACH):
            yield Y, rotate_to_targets(scaled, Y, generator)


def _line(observation: Observation, loss: Softmax, weights: Tensor) -> ClassLine:
    """The regression; what smoothing takes from every row, α e_c Σ t_i, is put back with the mean
    it finds."""
    line, floor = fit_class_line(observation), loss.floor(observation.classes)
    if floor is None:
        return line
    floor = floor.to(weights) / weights.mean()
    for _ in range(_LIFTS):
        lifted_b = None if observation.grad_b is None else observation.grad_b + floor
        lifted = replace(observation, U=observation.U + floor[:, None] * line.mean, grad_b=lifted_b)
        line = fit_class_line(lifted)
    return line


def _hypotheses(line: ClassLine, weights: Tensor, rank: int) -> Iterator[Tensor]:
    """(B, C) one-hot rows for B from the rank upwards: the largest shares first, each rounded."""
    shares = torch.where(
        line.labeled, (line.mass / weights).clamp_min(0), torch.zeros_like(line.mass)
    )
    total = float(shares.sum())
    if not 0 < total < float("inf"):
        return
    seen = set()
    for B in range(rank, rank + _MORE + 1):
        counts = whole_counts(shares * (B / total), B)
        key = tuple(counts.tolist())
        if key not in seen:
            seen.add(key)
            labels = torch.repeat_interleave(
                torch.arange(len(counts), device=counts.device), counts
            )
            yield torch.nn.functional.one_hot(labels, len(counts)).double()
