"""One sample alone: a single number t is unknown, so all of its range is looked at (the soft-label
paper's own case).

With R = 1, F = t A and ŷ_c(t, α) = softmax(t K + b)_c − U_c/(α t) must be one floor for all classes
but the one or two that the label names. A bias gradient tells t and leaves α open; without one α is
taken as plain and t is searched. |p_c − y_c| ≤ 1 bounds |t| from below. A saturated softmax makes
every label look flat as |t| → ∞: of several roots the smallest |t| counts.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unsum.equation.equation import Equation, Unknowns, solve
from unsum.equation.observation import Observation

_NAMED = 2  # classes that a mixed label names
# logits of a hundred turn softmax over within 1 %: two points per that
_DECADES, _PER_DECADE = 4, 500
_ROOTS, _ITERATIONS = 8, 60  # local minima worth solving from, and how long


def lone_roots(observation: Observation) -> list[tuple[Equation, Unknowns]]:
    """Where the walk's most promising points lead, with the equation of each: the smallest length
    first."""
    roots, (t, alpha) = [], _candidates(observation)
    for in_noise_units in (True, False):
        loss, floor, named = _flatness(observation, t, alpha, in_noise_units)
        for index in _local_minima(loss):
            start = Unknowns(t[index].view(1, 1), floor[index], alpha[index].log().view(1))
            equation = observation.equation().with_rows(
                observation.weight.index_fill(0, named[index], 0.0)
            )
            equation = replace(equation, floor_free=True, alpha_free=equation.has_bias)
            root = solve(equation, start, _ITERATIONS, in_noise_units=True)
            if root.is_sound:
                roots.append((equation, root))
    return sorted(roots, key=lambda root: float(root[1].T.norm()))


def _candidates(observation: Observation) -> tuple[Tensor, Tensor]:
    """(n,) lengths t and (n,) factors α in the order of a walk, so that neighbors are neighbors."""
    U, plain = observation.U[:, 0], observation.alpha(1.0, 1)
    factors = torch.logspace(0, _DECADES, _DECADES * _PER_DECADE, dtype=U.dtype, device=U.device)
    if observation.grad_b is None:
        lengths = factors * float(U.abs().max()) / plain
        lengths = torch.cat([-lengths.flip(0), lengths])
        return lengths, torch.full_like(lengths, plain)
    weight, bias = observation.weight.square(), observation.grad_b
    t = (weight * U * bias).sum() / (weight * bias.square()).sum()
    # |p − y| ≤ 1 bounds α from below. The plain factor comes first, apart from the walk.
    walk = torch.cat([factors.new_tensor([plain]), factors * float(bias.abs().max())])
    return t.expand(len(walk)), walk


def _flatness(
    observation: Observation, t: Tensor, alpha: Tensor, in_noise_units: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """For every candidate how far all but two classes are from one floor, the floor, and those two
    classes.

    Near the root the noise's units name the label's classes; where softmax is peaked that is too
    near for the walk's steps, since unlikely classes are known to a part of themselves, and plain
    differences name them.
    """
    gain = (alpha * t)[:, None]
    Y = (
        torch.softmax(t[:, None] * observation.K + observation.b, dim=1)
        - observation.U[:, 0] / gain
    )
    floor = Y.median(dim=1).values
    off = Y - floor[:, None]
    square = (observation.weight * gain * off if in_noise_units else off).square()
    worst = square.topk(min(_NAMED, square.shape[1] - 1), dim=1)
    loss = (square.sum(1) - worst.values.sum(1)).clamp_min(0)
    return loss, floor, worst.indices


def _local_minima(loss: Tensor) -> list[int]:
    """Indices of the lowest local minima, ends included, the lowest first."""
    padded = torch.nn.functional.pad(loss, (1, 1), value=torch.inf)
    lowest = (padded[1:-1] <= padded[:-2]) & (padded[1:-1] <= padded[2:])
    minima = lowest.nonzero()[:, 0]
    return minima[loss[minima].argsort()][:_ROOTS].tolist()
